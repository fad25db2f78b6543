"""Files of a checkout of PyTorch: FSDP's and distributed checkpoints' tests, as its `test/` folder has them.

A file is read as `redirect.py` says, and so are the modules of the wheel that it stands on. Its tests are of
three kinds:

    of processes    on `MultiProcessTestCase` or `MultiProcContinuousTest`: each process of a team runs it, as
                    many as its class says
    of threads      on `MultiThreadedTestCase`: it starts its own, in one process
    alone           any other

What a test asks of how many devices there are is answered with the number of processes that the command has.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torch_pjrt_spmd.testing.distributed_suite.joining import join, rank, store_file
from torch_pjrt_spmd.testing.distributed_suite.redirect import DEVICE, load, load_file, n_devices

FOLDERS = ("test/distributed/_composable/fsdp", "test/distributed/checkpoint")
_BACKEND = f"cpu:gloo,{DEVICE}:{DEVICE}"


def files_of(checkout: Path, names: Sequence[str]) -> list[Path]:
    """The files of tests of a checkout, those with one of the names (`*` allowed) if there are names."""
    found = sorted(f for folder in FOLDERS for f in (checkout / folder).rglob("test_*.py"))
    return [f for f in found if not names or any(fnmatchcase(f.stem, name) for name in names)]


class CheckoutFile:
    """The tests of a file, as `Class.name`."""

    def __init__(self, path: Path) -> None:
        _redirect_what_they_stand_on()
        sys.path.insert(0, str(path.parent))  # files import what is beside them
        module = load_file(path.stem, path)
        self._classes = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, type)
            and issubclass(value, unittest.TestCase)
            and value.__module__ == path.stem
        }

    def sizes(self) -> Mapping[str, int]:
        """Each test, and how many processes run it; 0 for one that is alone or starts threads."""
        return {f"{kind}.{name}": size for kind in self._classes for name, size in self._of(kind)}

    def _of(self, name: str) -> Iterator[tuple[str, int]]:
        kind: Any = self._classes[name]
        for test in unittest.TestLoader().getTestCaseNames(kind):
            yield test, int(kind(test).world_size) if _is_of_processes(kind) else 0

    def run(self, test: str) -> None:
        """The test, in this process. Raises what it raises, `unittest.SkipTest` too."""
        kind, _, name = test.partition(".")
        case = self._classes[kind](name)
        if _is_of_processes(type(case)):
            _run_in_the_team(case, name)
        else:
            _run_alone(case)


def _is_of_processes(kind: type[Any]) -> bool:
    from torch.testing._internal.common_distributed import (
        MultiProcContinuousTest,
        MultiProcessTestCase,
    )

    return issubclass(kind, (MultiProcessTestCase, MultiProcContinuousTest))


def _run_in_the_team(case: Any, name: str) -> None:
    """As PyTorch's harness does in a process that it has started: without `setUp`, which starts them."""
    function = getattr(case, name)
    for skipped in (type(case), function):
        if getattr(skipped, "__unittest_skip__", False):
            raise unittest.SkipTest(skipped.__unittest_skip_why__)
    if case.world_size > n_devices():
        raise unittest.SkipTest(f"needs {case.world_size} processes")
    case.rank = rank()
    case.file_name = store_file()
    join(_BACKEND)
    if hasattr(type(case), "rdvz_file"):  # one process after the other runs the tests of its class
        type(case).rank, type(case).pg = rank(), dist.group.WORLD
    function()


def _run_alone(case: unittest.TestCase) -> None:
    result = unittest.TestResult()
    case.run(result)
    if result.skipped:
        raise unittest.SkipTest(result.skipped[0][1])
    for _, text in (*result.errors, *result.failures):
        print(text, file=sys.stderr)
        raise FailedAlone(_last_error(text))


class FailedAlone(Exception):
    """Its text is the class and the words of what a test has raised."""


def _last_error(trace: str) -> str:
    """The last line of a trace, or of several in a row, that names an error."""
    lines = [line for line in trace.splitlines() if line[:1].strip() and ": " in line]
    return lines[-1] if lines else trace


def _redirect_what_they_stand_on() -> None:
    """The modules of the wheel that such files stand on, in the order in which one imports another."""
    load("torch.testing._internal.distributed.multi_threaded_pg")
    fsdp: Any = load("torch.testing._internal.common_fsdp")
    fsdp.DEVICE_TYPE = fsdp.DISTRIBUTED_BACKEND = DEVICE
    fsdp.DEVICE_COUNT = n_devices()
    dtensor: Any = load("torch.testing._internal.distributed._tensor.common_dtensor")
    dtensor.DEVICE_TYPE = dtensor.PG_BACKEND = DEVICE
    dtensor.DEVICE_COUNT = n_devices()
    dtensor.NUM_DEVICES = min(4, n_devices())
    # The process group is the run's.
    dtensor.DTensorTestBase.init_pg = dtensor.DTensorTestBase.destroy_pg = _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass
