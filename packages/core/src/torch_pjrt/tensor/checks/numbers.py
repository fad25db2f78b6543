"""Python numbers that an operator refuses: looked at in each call.

A signature is learnt once, and numbers are not part of it. So what is suspicious in a number is a row of
`SUSPICIOUS`, and the CPU's kernel is tried with what raises it. Distributions in place are in
`tensor/kernels/distributions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording.cpu_errors import raise_if_refused
from torch_pjrt.tensor.recording.schema import functional_form

Suspicion = Callable[..., bool]

_LIMITS: dict[torch.dtype, tuple[float, float]] = {
    dtype: (limits.min, limits.max)
    for dtypes, look in (
        ((torch.float16, torch.bfloat16, torch.float32, torch.float64), torch.finfo),
        ((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.iinfo),
    )
    for dtype in dtypes
    for limits in (look(dtype),)
}


def _fits(number: Any, dtype: torch.dtype | None) -> bool:
    """Whether a dtype holds a number; a dtype that says nothing of its limits holds all."""
    limits = _LIMITS.get(dtype)  # type: ignore[arg-type]
    if limits is None or number.__class__ not in (int, float):
        return True
    return limits[0] <= number <= limits[1] or not math.isfinite(number)


def _too_large(self: torch.Tensor, *positions: Any, value: Any = None, **_: Any) -> bool:
    """A number to fill in, which stands last."""
    return not _fits(positions[-1] if value is None else value, self.dtype)


def _by_zero(self: Any, other: Any, *, rounding_mode: str | None = "floor", **_: Any) -> bool:
    """A whole number divided by 0; a number may come as a tensor of the CPU."""
    if isinstance(other, torch.Tensor):
        if other.device.type != "cpu" or other.ndim:
            return False
        other = other.item()
    if other != 0 or rounding_mode is None or isinstance(other, float):
        return False
    return not (isinstance(self, torch.Tensor) and self.dtype.is_floating_point)


def _no_range(self: torch.Tensor, low: float = 0, high: float = 1, **named: Any) -> bool:
    low, high, dtype = named.get("from", low), named.get("to", high), self.dtype
    fit = low <= high and _fits(low, dtype) and _fits(high, dtype)
    width = float(high) - low  # infinite if float64 cannot hold it
    return not (fit and math.isfinite(width) and _fits(width, dtype))


def _no_deviation(mean: Any, std: float = 1, *_: Any, **__: Any) -> bool:
    return not std >= 0


def _no_deviation_of(self: torch.Tensor, mean: float = 0, std: float = 1, **_: Any) -> bool:
    return not std >= 0


#   functional overload                 when a call is suspicious
SUSPICIOUS: dict[Any, Suspicion] = {
    aten.bernoulli.p: lambda self, p=0.5, **_: not 0 <= p <= 1,
    aten.celu.default: lambda self, alpha=1, **_: alpha == 0,
    aten.div.Scalar_mode: _by_zero,
    aten.div.Tensor_mode: _by_zero,
    aten.fill.Scalar: _too_large,
    aten.floor_divide.Scalar: _by_zero,
    aten.floor_divide.default: _by_zero,
    aten.fmod.Scalar: _by_zero,
    aten.fmod.Tensor: _by_zero,
    aten.full.default: lambda size, fill_value, dtype=None, **_: not _fits(fill_value, dtype),
    aten.huber_loss.default: lambda self, target, reduction=1, delta=1.0, **_: not delta > 0,
    aten.index_fill.int_Scalar: _too_large,
    aten.leaky_relu_backward.default: lambda grad_output, self, negative_slope, *_, **__: (
        negative_slope < 0
    ),
    aten.masked_fill.Scalar: _too_large,
    aten.normal.Tensor_float: _no_deviation,
    aten.normal.float_float: _no_deviation,
    aten.normal_functional.default: _no_deviation_of,
    aten.remainder.Scalar: _by_zero,
    aten.remainder.Tensor: _by_zero,
    aten.renorm.default: lambda self, p, dim, maxnorm, **_: maxnorm < 0 or not p > 0,
    aten.scalar_tensor.default: lambda s, dtype=None, **_: not _fits(s, dtype),
    aten.scatter.value: _too_large,
    aten.uniform.default: _no_range,
}


def with_numbers_tried(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of `op` with its numbers looked at, if it refuses some."""
    functional = functional_form(op)
    is_suspicious = SUSPICIOUS.get(functional)
    if is_suspicious is None:
        return kernel

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_suspicious(*args, **kwargs):
            raise_if_refused(op, args, kwargs)
        return kernel(*args, **kwargs)

    return run
