"""One table of the kernels that are written by hand, of those that this PyTorch has an operator for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch_pjrt.overloads import Absent, absent, present

_FILES = (
    "kernels.aliasing",
    "kernels.attention",
    "kernels.batch_norm",
    "kernels.composites",
    "kernels.copy",
    "kernels.creation",
    "kernels.ctc",
    "kernels.determinants",
    "kernels.distributions",
    "kernels.first_fills",
    "kernels.histograms",
    "kernels.least_squares",
    "kernels.linear",
    "kernels.multinomial",
    "kernels.observing",
    "kernels.spaced",
    "kernels.transformer",
    "padding.data_dependent",
    "padding.masks",
)


def _all() -> dict[Any, Callable[..., Any]]:
    tables = [import_module(f"torch_pjrt.tensor.{file}").KERNELS for file in _FILES]
    return {op: kernel for table in tables for op, kernel in table.items()}


def kernels() -> dict[Any, Callable[..., Any]]:
    """The kernels by operator. Starts no device."""
    return present(_all())


def left_out() -> list[Absent]:
    """The operators with a kernel that this PyTorch lacks, above autograd and of sparse tensors, too."""
    from torch_pjrt.tensor.kernels import (
        attention,
        attention_backward,
        composites,
        linear,
        recurrent,
    )
    from torch_pjrt.tensor.sparse import kernels

    tables = (attention, attention_backward, composites, linear, recurrent)
    above = [op for table in tables for op in table.ABOVE_AUTOGRAD]
    sparse = (op for op, _ in kernels.KERNELS)
    return absent(dict.fromkeys((*_all(), *above, *sparse)))
