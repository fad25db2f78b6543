"""Operators that fold dims away, or work along them: the room is filled with what changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_pjrt.extend.padding import highest, lowest
from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.operators import recorded
from torch_pjrt_dynamo.padded.dims import Dim, NotProvable, is_padded
from torch_pjrt_dynamo.padded.sized import Call, Sized, one_factor, only, volume, wide

Fill = float | Callable[[torch.dtype, Any], float]


def _folded(call: Call) -> tuple[list[int], tuple[Dim, ...]]:
    """The dims that are folded, and those of the result."""
    x: Sized = call["self"]
    asked = call.given.get("dim")
    asked = [asked] if isinstance(asked, int) else asked
    gone = [d % max(x.ndim, 1) for d in asked] if asked else list(range(x.ndim))
    if call.given.get("keepdim", False):
        return gone, tuple(() if d in gone else dim for d, dim in enumerate(x.dims))
    return gone, tuple(dim for d, dim in enumerate(x.dims) if d not in gone)


def fold(fill: Fill) -> Callable[[Call], Any]:
    """The rule of an operator that folds, with what it ignores."""

    def rule(call: Call) -> Any:
        only(call, "self")
        x: Sized = call["self"]
        gone, dims = _folded(call)
        value = fill(x.tensor.dtype, {}) if callable(fill) else fill
        result = call.do(self=call.sizes.filled(x, gone, value))
        if isinstance(result, torch.Tensor):
            return call.sizes.sized(result, dims)
        return [call.sizes.sized(r, dims) for r in result]

    return rule


def place(fill: Fill) -> Callable[[Call], Any]:
    """As `fold`, where a result is a place along the dim."""
    folding = fold(fill)

    def rule(call: Call) -> Any:
        x: Sized = call["self"]
        if call.given.get("dim") is None and x.ndim > 1 and x.is_padded:
            raise NotProvable("it gives a place among all elements")
        for d in _folded(call)[0]:
            one_factor(x.dims[d])
        return folding(call)

    return rule


def norm(call: Call) -> Any:
    if call["ord"] is not None and call["ord"] <= 0:
        raise NotProvable("the norm counts zeros, or takes the least")
    return fold(0)(call)


def mean(call: Call) -> Sized:
    only(call, "self")
    x: Sized = call["self"]
    gone, dims = _folded(call)
    if not any(is_padded(x.dims[d]) for d in gone):
        return call.sizes.sized(call.do(), dims)
    total, n = _summed(call, call.sizes.filled(x, gone, 0), gone)
    return call.sizes.sized((total / n).to(call.traced.dtype), dims)


def _summed(call: Call, x: Sized, gone: Sequence[int]) -> tuple[torch.Tensor, Any]:
    """The sum over dims, in a dtype that has digits enough, and of how many elements it is."""
    dtype = wide(call.traced.dtype)
    keepdim = call.given.get("keepdim", False)
    total = recorded(aten.sum.dim_IntList, (x.tensor, list(gone), keepdim), {"dtype": dtype})
    return total, volume(call, [x.dims[d] for d in gone])


def var(call: Call) -> Sized:
    """Of `std` the root, too."""
    only(call, "self")
    x: Sized = call["self"]
    gone, dims = _folded(call)
    if not any(is_padded(x.dims[d]) for d in gone):
        return call.sizes.sized(call.do(), dims)
    made = _var(call, x, gone)
    if call.op is aten.std.correction:
        made = made.sqrt()
    return call.sizes.sized(made.to(x.tensor.dtype), dims)


def _var(call: Call, x: Sized, gone: Sequence[int]) -> torch.Tensor:
    """Squared distances from the mean, summed, over the number of elements less the correction."""
    dtype = x.tensor.dtype
    if dtype.is_complex:
        raise NotProvable("the variance of complex numbers")
    x = Sized(x.tensor.to(wide(dtype)), x.dims)
    keepdim = call["keepdim"]
    there = call.sizes.filled(x, gone, 0)
    n: Any = volume(call, [x.dims[d] for d in gone])
    middle = there.tensor.sum(list(gone), keepdim=True) / n
    distances = call.sizes.filled(Sized((there.tensor - middle).square(), x.dims), gone, 0)
    correction = 1 if call["correction"] is None else call["correction"]
    divisor = (n.to(x.tensor.dtype) - correction).clamp_min(0)
    return distances.tensor.sum(list(gone), keepdim=keepdim) / divisor


def softmax(call: Call) -> Sized:
    x: Sized = call["self"]
    only(call, "self")
    filled = call.sizes.filled(x, [call.dim()], -math.inf)
    return call.sizes.sized(call.do(self=filled), x.dims)


def softmax_backward(call: Call) -> Sized:
    grad, output = call["grad_output"], call["output"]
    only(call, "grad_output", "output")
    if grad.dims != output.dims:
        raise NotProvable("it joins sizes that vary in another order")
    d = call["dim"] % max(grad.ndim, 1)
    made = call.do(
        grad_output=call.sizes.filled(grad, [d], 0), output=call.sizes.filled(output, [d], 0)
    )
    return call.sizes.sized(made, grad.dims)


def scan(call: Call) -> Any:
    """What comes after the true elements changes nothing before."""
    x: Sized = call["self"]
    only(call, "self")
    if x.ndim:
        one_factor(x.dims[call.dim()])
    result = call.do()
    if isinstance(result, torch.Tensor):
        return call.sizes.sized(result, x.dims)
    return [call.sizes.sized(r, x.dims) for r in result]


_SUM, _ALL = fold(0), fold(1)
_MAX, _MIN = fold(lowest), fold(highest)

RULES: dict[Any, Any] = {
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList, aten.nansum.default), _SUM),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _SUM),
    **dict.fromkeys((aten.count_nonzero.dim_IntList, aten.count_nonzero.default), _SUM),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _ALL),
    **dict.fromkeys((aten.prod.default, aten.prod.dim_int), _ALL),
    **dict.fromkeys((aten.amax.default, aten.max.default), _MAX),
    **dict.fromkeys((aten.amin.default, aten.min.default), _MIN),
    **dict.fromkeys((aten.max.dim, aten.argmax.default), place(lowest)),
    **dict.fromkeys((aten.min.dim, aten.argmin.default), place(highest)),
    aten.logsumexp.default: fold(-math.inf),
    aten.linalg_vector_norm.default: norm,
    **dict.fromkeys((aten.mean.default, aten.mean.dim), mean),
    **dict.fromkeys((aten.var.correction, aten.std.correction), var),
    **dict.fromkeys((aten._softmax.default, aten._safe_softmax.default), softmax),
    aten._log_softmax.default: softmax,
    **dict.fromkeys(
        (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default),
        softmax_backward,
    ),
    **dict.fromkeys((aten.cumsum.default, aten.cumprod.default), scan),
    **dict.fromkeys((aten.cummax.default, aten.cummin.default), scan),
    aten._logcumsumexp.default: scan,
}
