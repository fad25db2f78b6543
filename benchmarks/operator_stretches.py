"""What an operator costs the host: which ones benchmarks call, and how a stretch of calls is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import torch_pjrt

OPERATORS: dict[str, tuple[Callable[..., Any], int]] = {  # what is called, on how many tensors
    "add": (torch.add, 2),
    "mm": (torch.mm, 2),
    "relu": (torch.relu, 1),
    "add_": (torch.Tensor.add_, 2),
    "t()": (torch.Tensor.t, 1),
}


def stretch_us(
    call: Callable[..., Any],
    n_tensors: int,
    make: Callable[[], Any],
    *,
    n_calls: int,
    n_warm: int = 0,
) -> float:
    """Microseconds of one call, the mean over a stretch on fresh tensors.

    n_calls  far fewer than the tape holds before it is run; `n_warm` before them are not timed.
    """
    tensors = [make() for _ in range(n_tensors)]
    for _ in range(n_warm):
        call(*tensors)
    torch_pjrt.sync()
    start = time.perf_counter()
    for _ in range(n_calls):
        call(*tensors)
    seconds = time.perf_counter() - start
    del tensors  # before the sync, or what was written to them would be computed
    torch_pjrt.sync()
    return seconds / n_calls * 1e6
