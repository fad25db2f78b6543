"""One process of a run: lists the tests of a file, runs those that it is told to, as all the others do.

A question is `{"list": true}` or `{"run": NAME}`. The answers: `{"tests": [...]}`, or `{"error": WHY}`; and
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
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as distributed_c10d

from torch_pjrt.testing.child import answers
from torch_pjrt.testing.pytorch_suite.outcomes import Outcome, in_a_line
from torch_pjrt_spmd.testing.distributed_suite.redirect import DEVICE

_FILES = "torch_pjrt_spmd.testing.distributed_suite.files"
# Of a collective, as where PyTorch runs them.
_TIMEOUT = timedelta(seconds=60)


def tests_of(file: str) -> type[Any]:
    """The class of tests of a file."""
    return import_module(f"{_FILES}.{file}").Tests


def run(tests: type[Any], name: str) -> dict[str, Any]:
    """One test, in a process group of all processes, with the device where no other is named."""
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.common_utils import set_rng_seed

    skips = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    start = time.perf_counter()
    outcome, why = Outcome.PASSED, ""
    try:
        if getattr(getattr(tests, name), "__unittest_skip__", False):
            raise unittest.SkipTest(getattr(tests, name).__unittest_skip_why__)
        test = _made(tests, name)
        set_rng_seed()
        with torch.device(DEVICE):
            getattr(test, name)()
    except unittest.SkipTest as skip:
        outcome, why = Outcome.SKIPPED, in_a_line(str(skip))
    except SystemExit as end:
        if end.code in skips:
            outcome, why = Outcome.SKIPPED, skips[end.code]
        elif end.code:
            outcome, why = Outcome.FAILED, f"it ended its process with status {end.code}"
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
        "goes_on": dist.is_initialized() or outcome is Outcome.SKIPPED,
    }


def _made(tests: type[Any], name: str) -> Any:
    """The test as PyTorch's harness makes it in a process that it starts, beside the process group."""
    test = tests(name)
    test.rank = int(os.environ["RANK"])
    test.file_name = os.environ["INIT_METHOD"].removeprefix("file://")
    if not dist.is_initialized():
        dist.init_process_group(
            os.environ["BACKEND"],
            init_method=os.environ["INIT_METHOD"],
            rank=test.rank,
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=_TIMEOUT,
        )
        tests.on_joining()
    return test


def _work(file: str) -> None:
    out = answers()
    faulthandler.enable()
    warnings.simplefilter("ignore")

    def say(answer: Any) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    try:
        tests = tests_of(file)
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {in_a_line(str(error))}"})
        return
    for line in sys.stdin:
        question = json.loads(line)
        if "list" in question:
            say({"tests": unittest.TestLoader().getTestCaseNames(tests)})
        else:
            say(run(tests, question["run"]))


if __name__ == "__main__":
    _work(sys.argv[1])
    # What waits at the end of a process waits for processes that are gone.
    sys.stdout.flush()
    os._exit(0)
