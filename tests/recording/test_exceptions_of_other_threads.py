"""An exception that another thread raises in this one ends the call; what it held is whole, and steps go on.

`PyThreadState_SetAsyncExc` does that, for limits of time and the like. The exception comes where no handler
of a signal would be called, too. Steps and places are those of `helpers/raised_anywhere.py`, which runs
in a child; if that dies, another goes on. TORCH_PJRT_INTERRUPTS=1000 in the environment has all places tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import raised_anywhere

SCRIPT = Path(raised_anywhere.__file__)
EVERY = ["all"] if int(os.environ.get("TORCH_PJRT_INTERRUPTS", "100")) >= 1000 else []


def run_from(kind: str, first: int) -> tuple[int, int, list[str]]:
    """How many places there are, how many a child tried, and what was wrong."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(SCRIPT), kind, str(first), *EVERY],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCH_PJRT_CACHE_DIR": ""},
        timeout=1200,
        check=False,
    )
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    said = {
        word: [text for w, text in lines if w == word] for word in ("places", "begins", "fault")
    }
    assert said["begins"], done.stderr
    if done.returncode:
        said["fault"].append(f"{said['begins'][-1]}: the child ended with {done.returncode}")
    return int(said["places"][0]), len(said["begins"]), said["fault"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", raised_anywhere.KINDS)
def test_what_it_held_is_whole(kind: str, record_property: Callable[[str, object], None]) -> None:
    tried, n, faults = 0, 1, []
    while tried < n:
        n, began, found = run_from(kind, tried)
        tried += began
        faults += found

    record_property("moments of interrupts", tried)
    assert not faults, f"{len(faults)} at {tried} places:\n" + "\n".join(faults[:20])
