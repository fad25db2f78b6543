"""Calls of which PyTorch warns each time: learnt anew each time, so that its meta functions do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.schema import functional_form
from torch_pjrt.tensor.storage.buffer import is_pjrt, spec_and_offset
from torch_pjrt.tensor.storage.counts import DATA_DEPENDENT

# From these numbers on a dtype leaves out whole numbers.
_GAPS = {torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**53}


def _few_degrees(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    **_: Any,
) -> bool:
    """No degrees of freedom are left."""
    spec = spec_and_offset(self)[0] if is_pjrt(self) else DATA_DEPENDENT
    if spec is DATA_DEPENDENT:
        return False
    try:
        n = math.prod([spec.shape[d] for d in dim]) if dim and spec.numel else spec.numel
    except IndexError:  # an error of its own
        return False
    return n <= (1 if correction is None else correction)


def _in_gaps(self: torch.Tensor, *limits: int | None, **named: Any) -> bool:
    """A range of whole numbers that the dtype does not have."""
    limits += (named.get("from"), named.get("to"))
    largest = _GAPS.get(self.dtype, math.inf)
    return any(n is not None and abs(n) > largest for n in limits)


#   functional overload                 when PyTorch warns of a call
WARNED: dict[Any, Callable[..., bool]] = {
    getattr(aten.random, "from"): _in_gaps,
    aten.random.to: _in_gaps,
    aten.std.correction: _few_degrees,
    aten.std_mean.correction: _few_degrees,
    aten.var.correction: _few_degrees,
    aten.var_mean.correction: _few_degrees,
}


def with_warnings(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of `op`, which warns each time of what PyTorch warns of."""
    is_warned = WARNED.get(functional_form(op))
    if is_warned is None:
        return kernel

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_warned(*args, **kwargs):
            return record.call(op, args, kwargs, anew=True)
        return kernel(*args, **kwargs)

    return run
