"""Processes that these tests start import the jobs that they are to do by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hangs import SLACK_S

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def jobs_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """By this process and by those that it starts, which are on CPU."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")


@pytest.fixture
def all_are_gone() -> Callable[[list[int]], None]:
    """Fails unless the processes of these numbers are gone, or go soon."""

    def check(numbers: list[int]) -> None:
        assert numbers
        end = time.monotonic() + SLACK_S
        while left := [n for n in numbers if _runs(n)]:
            assert time.monotonic() < end, f"still there: {left}"
            time.sleep(0.05)

    return check


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
