"""Means, variances and losses of padded tensors: they divide by a size that varies.

Losses are computed element by element and then folded, as PyTorch's CPU kernels do.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.padding.dims import Dim, Unsuited, broadcast, has_padding
from torch_pjrt.tensor.padding.padded_call import PaddedCall, Sized, only, wide
from torch_pjrt.tensor.padding.rules import folded

_NONE, _MEAN, _SUM = 0, 1, 2  # PyTorch's numbers of ways to reduce
_COMPARED = "self", "target", "weight", "pos_weight"


def _folded(call: PaddedCall) -> tuple[list[int], tuple[Dim, ...]]:
    """The dims that are folded, and those of the result."""
    x: Sized = call["self"]
    gone = [*folded(call.given, "self")]
    if call.given.get("keepdim", False):
        return gone, tuple(() if d in gone else dim for d, dim in enumerate(x.dims))
    return gone, tuple(dim for d, dim in enumerate(x.dims) if d not in gone)


def _sum(
    call: PaddedCall, x: Sized, gone: list[int], *, keepdim: bool, dtype: torch.dtype
) -> torch.Tensor:
    there = call.filled(x, gone, 0).tensor
    return call.record(aten.sum.dim_IntList, there, gone, keepdim, dtype=dtype)


def mean(call: PaddedCall) -> Any:
    x: Sized = call["self"]
    dtype = call.given.get("dtype") or x.dtype
    gone, dims = _folded(call)
    if not any(has_padding(x.dims[d]) for d in gone):
        return call.result(call.do(), dims)
    if not (dtype.is_floating_point or dtype.is_complex):
        raise Unsuited("PyTorch refuses it")
    keepdim = call.given.get("keepdim", False)
    total = _sum(call, x, gone, keepdim=keepdim, dtype=wide(dtype))
    number = call.size(*(x.dims[d] for d in gone))
    return call.result(call.cast(call.record(aten.div.Tensor, total, number), dtype), dims)


def variance(call: PaddedCall) -> Any:
    """Also its root, and either with the mean."""
    x: Sized = call["self"]
    gone, dims = _folded(call)
    if not any(has_padding(x.dims[d]) for d in gone):
        results = call.do()
        if isinstance(results, torch.Tensor):
            return call.result(results, dims)
        return type(results)(call.result(r, dims) for r in results)
    if not x.dtype.is_floating_point:
        raise Unsuited("the variance of complex numbers")
    keepdim, correction = call["keepdim"], call["correction"]
    dtype = wide(x.dtype)
    x = Sized(call.cast(x.tensor, dtype), x.dims)
    number = call.size(*(x.dims[d] for d in gone))
    total = _sum(call, x, gone, keepdim=True, dtype=dtype)
    center = call.record(aten.div.Tensor, total, number)
    distance = call.record(aten.sub.Tensor, x.tensor, center)
    # Of one element the mean is that element, but XLA's products may be rounded differently there.
    single = call.record(aten.eq.Scalar, number, 1)
    nothing = call.record(aten.mul.Scalar, distance, 0)
    distance = call.record(aten.where.self, single, nothing, distance)
    square = Sized(call.record(aten.mul.Tensor, distance, distance), x.dims)
    total = _sum(call, square, gone, keepdim=keepdim, dtype=dtype)
    divisor = call.record(aten.sub.Scalar, number, 1 if correction is None else correction)
    made = call.record(aten.div.Tensor, total, call.record(aten.clamp_min.default, divisor, 0))
    if call.op in (aten.std.correction, aten.std_mean.correction):
        made = call.record(aten.sqrt.default, made)
    dtype = call["self"].dtype
    result = call.result(call.cast(made, dtype), dims)
    if call.op in (aten.var.correction, aten.std.correction):
        return result
    if not keepdim:
        center = call.record(aten.sum.dim_IntList, center, gone)  # of one element each
    return result, call.result(call.cast(center, dtype), dims)


def _compared(call: PaddedCall) -> tuple[Dim, ...]:
    """The dims of the loss of each element."""
    return broadcast([x.dims for n in _COMPARED if isinstance(x := _argument(call, n), Sized)])


def _argument(call: PaddedCall, name: str) -> Any:
    return call[name] if name in call.given else None


def loss(call: PaddedCall) -> Any:
    only(call, *_COMPARED)
    dims = _compared(call)
    each = Sized(call.do(reduction=_NONE), dims)
    if call["reduction"] == _NONE:
        return call.result(each.tensor, dims)
    dtype = each.dtype
    total = call.record(aten.sum.default, call.all_filled(each, 0).tensor, dtype=wide(dtype))
    if call["reduction"] == _MEAN:
        total = call.record(aten.div.Tensor, total, call.size(*dims))
    return call.result(call.cast(total, dtype), ())


def loss_backward(call: PaddedCall) -> Any:
    """The gradient of a mean is that of a sum, where what comes in is divided by the number."""
    only(call, "grad_output", *_COMPARED)
    dims, grad = _compared(call), call["grad_output"]
    changed = {}
    if call["reduction"] == _MEAN:
        share = call.cast(grad.tensor, wide(grad.dtype))
        share = call.record(aten.div.Tensor, share, call.size(*dims))
        changed = {"grad_output": call.cast(share, grad.dtype), "reduction": _SUM}
    return call.result(call.do(**changed), call["self"].dims)


_LOSSES = "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss"

RULES: dict[Any, Any] = {
    **dict.fromkeys((aten.mean.default, aten.mean.dim), mean),
    **{getattr(aten, n).correction: variance for n in ("var", "std", "var_mean", "std_mean")},
    **{getattr(aten, name).default: loss for name in _LOSSES},
    **{getattr(aten, f"{name}_backward").default: loss_backward for name in _LOSSES},
    aten.binary_cross_entropy_with_logits.default: loss,
}
