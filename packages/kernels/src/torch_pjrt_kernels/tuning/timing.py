"""How long calls take on this machine: in turns, the least of some."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def least_s(steps: Mapping[str, Callable[[], Any]], repetitions: int = 5) -> dict[str, float]:
    """The least time of each, in seconds. Each turn calls all; the first, which compiles, does not count."""
    found = dict.fromkeys(steps, float("inf"))
    for repetition in range(repetitions + 1):
        for name, step in steps.items():
            begun = time.perf_counter()
            held = step()  # what nobody holds is not computed
            torch.accelerator.synchronize()
            took = time.perf_counter() - begun
            del held
            if repetition:
                found[name] = min(found[name], took)
    return found
