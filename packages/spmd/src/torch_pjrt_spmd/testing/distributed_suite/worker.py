"""One process of a run: lists the tests of a file, runs those that it is told to, as all the others do.

A question is `{"list": true}` or `{"run": NAME}`. The answers: `{"tests": {NAME: PROCESSES}}`, or
`{"error": WHY}`; and
`{"outcome": ..., "why": ..., "seconds": ..., "goes_on": ...}`, the last one being whether another test may
follow in this process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
import unittest
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as distributed_c10d

from torch_pjrt.testing.child import answers
from torch_pjrt.testing.pytorch_suite.outcomes import Outcome, in_a_line
from torch_pjrt_spmd.testing.distributed_suite.checkout import CheckoutFile, FailedAlone
from torch_pjrt_spmd.testing.distributed_suite.joining import is_joined, join, rank, store_file
from torch_pjrt_spmd.testing.distributed_suite.redirect import (
    DEVICE,
    MEAN_THE_CPU,
    cast_as_cuda,
)

_FILES = "torch_pjrt_spmd.testing.distributed_suite.files"


class CarriedFile:
    """The tests of one of `files/`: all processes run each, with the device where no other is named."""

    def __init__(self, name: str) -> None:
        self._tests: Any = import_module(f"{_FILES}.{name}").Tests

    def sizes(self) -> Mapping[str, int]:
        """The tests, and how many processes run each."""
        names = unittest.TestLoader().getTestCaseNames(self._tests)
        return dict.fromkeys(names, int(os.environ["DEVICES"]))

    def run(self, name: str) -> None:
        """The test as PyTorch's harness makes it in a process that it starts, beside the process group."""
        function = getattr(self._tests, name)
        if getattr(function, "__unittest_skip__", False):
            raise unittest.SkipTest(function.__unittest_skip_why__)
        test = self._tests(name)
        test.rank = rank()
        test.file_name = store_file()
        if join(os.environ["BACKEND"]):
            self._tests.on_joining()
        with nullcontext() if name in MEAN_THE_CPU else torch.device(DEVICE):
            getattr(test, name)()


def tests_of(file: str) -> CarriedFile | CheckoutFile:
    """The tests of a file of `files/`, or of one with this path."""
    return CheckoutFile(Path(file)) if file.endswith(".py") else CarriedFile(file)


def run(tests: CarriedFile | CheckoutFile, name: str, size: int) -> dict[str, Any]:
    """One test, of so many processes."""
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.common_utils import set_rng_seed

    skips = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    start = time.perf_counter()
    outcome, why = Outcome.PASSED, ""
    try:
        set_rng_seed()
        tests.run(name)
    except unittest.SkipTest as skip:
        outcome, why = Outcome.SKIPPED, in_a_line(str(skip))
    except SystemExit as end:
        if end.code in skips:
            outcome, why = Outcome.SKIPPED, skips[end.code]
        elif end.code:
            outcome, why = Outcome.FAILED, f"it ended its process with status {end.code}"
    except FailedAlone as error:
        outcome, why = Outcome.FAILED, in_a_line(str(error))
    except Exception as error:
        traceback.print_exc()
        outcome, why = Outcome.FAILED, f"{type(error).__name__}: {in_a_line(str(error))}"
    finally:
        # What a test that failed may have left.
        os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
        distributed_c10d.set_debug_level_from_env()
    return {
        "outcome": outcome,
        "why": why,
        "seconds": round(time.perf_counter() - start, 3),
        "goes_on": not size
        or is_joined()
        or (outcome is Outcome.SKIPPED and not dist.is_initialized()),
    }


def _work(file: str) -> None:
    out = answers()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    cast_as_cuda()

    def say(answer: Any) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    try:
        tests = tests_of(file)
        sizes = tests.sizes()
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {in_a_line(str(error))}"})
        return
    for line in sys.stdin:
        question = json.loads(line)
        if "list" in question:
            say({"tests": sizes})
        else:
            say(run(tests, question["run"], sizes[question["run"]]))


if __name__ == "__main__":
    _work(sys.argv[1])
    # What waits at the end of a process waits for processes that are gone.
    sys.stdout.flush()
    os._exit(0)
