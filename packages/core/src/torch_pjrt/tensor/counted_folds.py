"""Means, variances and losses of counted tensors: they divide by the count, a value on the device.

Losses are computed element by element and then folded, as PyTorch's CPU kernels do.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor import record
from torch_pjrt.tensor.counted import Roomy, count_tensor, roomy
from torch_pjrt.tensor.counted_run import Given, Unsuited, Way, padded_call, rooms_of
from torch_pjrt.tensor.counts import Count
from torch_pjrt.tensor.padding import ROWS

NONE, MEAN, SUM = 0, 1, 2
_HALF = frozenset((torch.float16, torch.bfloat16))


def _recorded(op: Any, *args: Any, **kwargs: Any) -> Any:
    return record.call(op, args, kwargs)


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x if x.dtype == dtype else _recorded(aten._to_copy.default, x, dtype=dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums run in."""
    return torch.float32 if dtype in _HALF else dtype


def _folded(x: torch.Tensor, dim: Any) -> list[int]:
    dims = [dim] if isinstance(dim, int) else dim
    return sorted(d % x.ndim for d in dims) if dims else list(range(x.ndim))


def _number(x: torch.Tensor, dims: list[int], count: Count) -> torch.Tensor:
    """How many elements are folded, as a 0-d tensor."""
    others = math.prod(x.shape[d] for d in dims) // count.n
    return _recorded(aten.mul.Scalar, count_tensor(count), others * count.scale)


def _self(given: Given) -> tuple[Roomy, list[int]]:
    """The tensor with its room, and the dims that are folded."""
    x = given["self"]
    room = roomy(x)
    if room is None or not x.numel():
        raise Unsuited
    return room, _folded(x, given.get("dim"))


def _mean(op: Any, given: Given) -> Any:
    x = given["self"]
    dtype = given.get("dtype") or x.dtype
    room, dims = _self(given)
    if not (dtype.is_floating_point or dtype.is_complex):
        raise Unsuited  # PyTorch refuses it
    if room.dim not in dims:
        return padded_call(op, given, ROWS)
    keepdim = given.get("keepdim", False)
    total = _recorded(aten.sum.dim_IntList, x, dims, keepdim, dtype=_wide(dtype))
    return _cast(_recorded(aten.div.Tensor, total, _number(x, dims, room.count)), dtype)


def _moments(given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """The variance and the mean, not yet rounded."""
    x, correction, keepdim = given["self"], given["correction"], given["keepdim"]
    room, dims = _self(given)
    if not x.dtype.is_floating_point or room.dim not in dims:
        raise Unsuited
    wide = _cast(x, _wide(x.dtype))
    number = _number(x, dims, room.count)
    center = _recorded(aten.div.Tensor, _recorded(aten.sum.dim_IntList, wide, dims, True), number)
    distance = _recorded(aten.sub.Tensor, wide, center)
    # Of one element the mean is that element, but XLA's products may be rounded differently there.
    single = _recorded(aten.eq.Scalar, number, 1)
    nothing = _recorded(aten.mul.Scalar, distance, 0)
    distance = _recorded(aten.where.self, single, nothing, distance)
    square = _recorded(aten.mul.Tensor, distance, distance)
    total = _recorded(aten.sum.dim_IntList, square, dims, keepdim)
    number = _recorded(aten.sub.Scalar, number, 1 if correction is None else correction)
    variance = _recorded(aten.div.Tensor, total, _recorded(aten.clamp_min.default, number, 0))
    if not keepdim:
        center = _recorded(aten.sum.dim_IntList, center, dims)  # of one element each
    return variance, center


def _variance(*, root: bool, with_mean: bool) -> Way:
    def way(op: Any, given: Given) -> Any:
        variance, center = _moments(given)
        dtype = given["self"].dtype
        result = _cast(_recorded(aten.sqrt.default, variance) if root else variance, dtype)
        return (result, _cast(center, dtype)) if with_mean else result

    return way


def _loss(op: Any, given: Given) -> Any:
    reduction = given["reduction"]
    losses = padded_call(op, {**given, "reduction": NONE}, ROWS)
    if reduction == NONE:
        return losses
    return _recorded(aten.mean.default if reduction == MEAN else aten.sum.default, losses)


def _loss_backward(op: Any, given: Given) -> Any:
    """The gradient of a mean is that of a sum, where what comes in is divided by the count."""
    x = given["self"]
    if given["reduction"] == MEAN:
        rooms = rooms_of(given, aligned=True)
        if not rooms or not x.numel():
            raise Unsuited
        count = next(iter(rooms.values())).count
        if x.numel() % count.n:  # it is broadcast
            raise Unsuited
        number = _number(x, list(range(x.ndim)), count)
        grad = _recorded(aten.div.Tensor, given["grad_output"], number)
        given = {**given, "grad_output": grad, "reduction": SUM}
    return padded_call(op, given, ROWS)


WAYS: dict[Any, Way] = {
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.var.correction: _variance(root=False, with_mean=False),
    aten.std.correction: _variance(root=True, with_mean=False),
    aten.var_mean.correction: _variance(root=False, with_mean=True),
    aten.std_mean.correction: _variance(root=True, with_mean=True),
    **dict.fromkeys(
        (
            aten.binary_cross_entropy.default,
            aten.binary_cross_entropy_with_logits.default,
            aten.huber_loss.default,
            aten.mse_loss.default,
            aten.smooth_l1_loss.default,
            aten.soft_margin_loss.default,
        ),
        _loss,
    ),
    **dict.fromkeys(
        (
            aten.binary_cross_entropy_backward.default,
            aten.huber_loss_backward.default,
            aten.mse_loss_backward.default,
            aten.smooth_l1_loss_backward.default,
            aten.soft_margin_loss_backward.default,
        ),
        _loss_backward,
    ),
}
