"""Losses that compare element by element: what is not there counts neither in the sum nor in the mean."""

from __future__ import annotations

from typing import Any

from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.operators import recorded
from torch_pjrt_dynamo.padded.dims import Dim
from torch_pjrt_dynamo.padded.pointwise import broadcast
from torch_pjrt_dynamo.padded.sized import Call, Sized, only, volume, wide

_COMPARED = "self", "target", "weight", "pos_weight"
_NONE, _MEAN = 0, 1  # PyTorch's numbers of ways to reduce


def _dims(call: Call) -> tuple[Dim, ...]:
    """Of the loss of each element."""
    return broadcast([x.dims for n in _COMPARED if isinstance(x := call.given.get(n), Sized)])


def loss(call: Call) -> Sized:
    only(call, *_COMPARED)
    dims = _dims(call)
    each = call.sizes.sized(call.do(reduction=_NONE), dims)
    if call["reduction"] == _NONE:
        return each
    dtype = call.traced.dtype
    there = call.sizes.all_filled(each, 0).tensor
    total = recorded(aten.sum.default, (there,), {"dtype": wide(dtype)})
    if call["reduction"] == _MEAN:
        total = total / volume(call, dims)
    return call.sizes.sized(total.to(dtype), ())


def loss_backward(call: Call) -> Sized:
    """The gradient of the loss of each element: a share of that of their mean."""
    only(call, "grad_output", *_COMPARED)
    grad, dims = call["grad_output"], _dims(call)
    if call["reduction"] != _NONE:
        share = grad.tensor
        if call["reduction"] == _MEAN:
            share = (share.to(wide(share.dtype)) / volume(call, dims)).to(share.dtype)
        grad = Sized(share.expand([call.sizes.room(d) for d in dims]), dims)
    made = call.do(grad_output=grad, reduction=_NONE)
    return call.sizes.sized(made, call["self"].dims)


_NAMES = "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss"

RULES: dict[Any, Any] = {
    **{getattr(aten, name).default: loss for name in _NAMES},
    **{getattr(aten, f"{name}_backward").default: loss_backward for name in _NAMES},
    aten.binary_cross_entropy_with_logits.default: loss,
}
