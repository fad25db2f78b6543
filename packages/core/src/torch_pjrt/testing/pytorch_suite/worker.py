"""The child: loads a file of tests, lists those of the device, runs those that it is told to.

A question is `{"list": FILE}` or `{"run": [NAME, ...]}` (`Class.name`, of the file listed last). The answer
to a list is `{"tests": [...]}` or `{"error": WHY}`; each test of a run is answered by `{"began": NAME}` and
`{"ended": NAME, "outcome": ..., "why": ..., "seconds": ...}`.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import sys
import time
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import torch

from torch_pjrt.run.deferred_checks import pending
from torch_pjrt.testing.child import answers
from torch_pjrt.testing.current_test import find_quickly
from torch_pjrt.testing.pytorch_suite.outcomes import Outcome, in_a_line


class _OneResult(unittest.TestResult):
    """Keeps what became of the one test that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome, self.why = Outcome.PASSED, ""

    def addError(self, test: Any, err: Any) -> None:
        self._failed(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        self._failed(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._failed(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        if self.outcome is Outcome.PASSED:
            self.outcome, self.why = Outcome.SKIPPED, in_a_line(reason)

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.why = "passed, though PyTorch expects a failure"

    def _failed(self, test: Any, err: Any) -> None:
        error = err[1]
        if self.outcome is not Outcome.FAILED:  # the first says most
            cause = error.__cause__ if str(error).startswith("Caused by") else None
            error = cause or error
            self.outcome = Outcome.FAILED
            self.why = f"{type(error).__name__}: {in_a_line(str(error))}"


def load(path: Path) -> ModuleType:
    """The file as a module; its folder is on the path, as where PyTorch runs it."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def tests_of(module: ModuleType) -> Iterator[str]:
    """`Class.name` of the tests that were made for the device."""
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and _is_for_device(cls):
            yield from (f"{cls.__name__}.{n}" for n in unittest.TestLoader().getTestCaseNames(cls))


def _is_for_device(cls: type) -> bool:
    from torch.testing._internal.common_device_type import PrivateUse1TestBase

    return issubclass(cls, PrivateUse1TestBase)


def run(module: ModuleType, name: str) -> dict[str, Any]:
    """One test. One that fails on the CPU as well does not apply: PyTorch on CPU is the oracle."""
    start = time.perf_counter()
    result = _run_alone(module, name)
    seconds = time.perf_counter() - start
    if result.outcome is Outcome.FAILED and (twin := _on_cpu(module, name)) is not None:
        theirs = _run_alone(module, twin)
        if theirs.outcome is Outcome.FAILED:
            result.outcome, result.why = Outcome.SKIPPED, f"fails on the CPU, too: {theirs.why}"
    return {
        "ended": name,
        "outcome": result.outcome,
        "why": result.why,
        "seconds": round(seconds, 3),
    }


def _run_alone(module: ModuleType, name: str) -> _OneResult:
    """One test, with its class set up and taken down."""
    cls, _, method = name.partition(".")
    result, test = _OneResult(), getattr(module, cls)(method)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as `unittest` does: some tests count warnings
        unittest.TestSuite([test]).run(result)
        for _ in pending():  # what the device finds late is not the next test's
            try:
                torch.pjrt.synchronize()  # type: ignore[attr-defined]
            except Exception:
                result.addError(test, sys.exc_info())
    return result


def _on_cpu(module: ModuleType, name: str) -> str | None:
    """The name of the same test for the CPU, if there is one."""
    cls, _, method = name.partition(".")
    # PyTorch names the first class of a file by its word for devices like ours, later ones by ours.
    cls = cls.removesuffix("PRIVATEUSE1").removesuffix("PJRT") + "CPU"
    before, _, after = method.rpartition("_pjrt")
    method = f"{before}_cpu{after}"
    return f"{cls}.{method}" if hasattr(getattr(module, cls, None), method) else None


def _work(out: TextIO) -> None:
    faulthandler.enable()
    find_quickly()
    warnings.simplefilter("ignore")
    module: ModuleType | None = None

    def say(answer: Any) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    for line in sys.stdin:
        question = json.loads(line)
        if "list" in question:
            try:
                module = load(Path(question["list"]))
                say({"tests": list(tests_of(module))})
            except (Exception, SystemExit) as error:  # a file that wants what is not there exits
                say({"error": f"{type(error).__name__}: {in_a_line(str(error))}"})
            continue
        assert module is not None
        for name in question["run"]:
            say({"began": name})
            say(run(module, name))


if __name__ == "__main__":
    _work(answers())
