"""What the tests at the root share: counting what is compiled, and Python in processes of its own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import torch_pjrt
import warm
from fixture_types import Count, Run
from torch_pjrt.observe.counters import counters
from torch_pjrt.observe.stops import forget_stops
from torch_pjrt.options import COMPILE
from torch_pjrt.session import session

# Properties of tests whose sum the end of the run shows: they say how much was tried.
SUMMED = ("random programs", "mixes of devices", "moments of interrupts")


@pytest.fixture(autouse=True)
def room_in_the_table() -> None:
    """A process that ran many other tests has as many lines as the table of syncs lists."""
    forget_stops()


@pytest.fixture
def compiled() -> Count:
    """How many programs were compiled since the test began; nothing is pending, known or counted then."""
    torch.zeros((), device="pjrt")
    gc.collect()
    torch_pjrt.sync()
    session.forget()
    return lambda: counters.programs_compiled


@pytest.fixture(scope="session")
def python() -> Run:
    """Runs a script in a process of its own; fails with what it wrote unless it ends with `returncode`.

    None accepts any. Keywords are environment variables; variables of ours are not inherited, but for how
    programs are compiled (`quickly.py`), and no programs are kept on disk. It finds PyTorch and JAX loaded
    (`warm.py`) unless it is to be `fresh`.
    """

    def run(
        script: str, *, returncode: int | None = 0, fresh: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        env = {
            k: v
            for k, v in os.environ.items()
            if k == COMPILE or not k.startswith(("TORCH_PJRT", "PJRT_"))
        }
        env |= {"TORCH_PJRT_CACHE_DIR": "", **variables}
        done = warm.run(["-c", script], env, fresh=fresh)
        assert returncode in (None, done.returncode), done.stdout + done.stderr
        return done

    return run


def pytest_collection_finish() -> None:
    """PyTorch's samples look for the test that asks for them: 80 ms each time, unless by our way."""
    if "torch.testing._internal.opinfo.core" in sys.modules:
        from torch_pjrt.testing.current_test import find_quickly

        find_quickly()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many random programs ran, and how many differed from PyTorch on CPU."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    for name in SUMMED:
        counts = [(v, r.failed) for r in reports for k, v in r.user_properties if k == name]
        if counts:
            total = sum(n for n, _ in counts)
            n_differ = sum(failed for _, failed in counts)
            terminalreporter.write_line(f"{name}: {total} ran, {n_differ or 'none'} differed")
