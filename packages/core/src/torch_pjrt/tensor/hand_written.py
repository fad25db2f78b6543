"""One table of the kernels that are written by hand, of those that this PyTorch has an operator for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch_pjrt.overloads import Absent, absent, present

_FILES = (
    "aliasing",
    "attention",
    "chances",
    "composites",
    "copied_over",
    "counting",
    "ctc",
    "determinants",
    "histograms",
    "least_squares",
    "masks",
    "moving",
    "multinomial",
    "norms",
    "spaced",
    "transformer",
)


def _all() -> dict[Any, Callable[..., Any]]:
    tables = [import_module(f"{__package__}.{file}").KERNELS for file in _FILES]
    return {op: kernel for table in tables for op, kernel in table.items()}


def kernels() -> dict[Any, Callable[..., Any]]:
    """The kernels by operator. Starts no device."""
    return present(_all())


def left_out() -> list[Absent]:
    """The operators with a kernel that this PyTorch lacks, above autograd and of sparse tensors, too."""
    from torch_pjrt.tensor import attention, attention_backward, composites, sparse_kernels

    tables = (attention, attention_backward, composites)
    above = [op for table in tables for op in table.ABOVE_AUTOGRAD]
    sparse = (op for op, _ in sparse_kernels.KERNELS)
    return absent(dict.fromkeys((*_all(), *above, *sparse)))
