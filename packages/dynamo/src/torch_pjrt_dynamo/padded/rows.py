"""Operators that treat each row for itself, or each image of a batch: normalization, convolution, pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.padded.dims import NotProvable, is_padded, one_of_each
from torch_pjrt_dynamo.padded.sized import Call, Sized, one_factor, only


def layer_norm(call: Call) -> list[Sized]:
    x: Sized = call["input"]
    only(call, "input")
    own = len(call["normalized_shape"])
    if any(map(is_padded, x.dims[x.ndim - own :])):
        raise NotProvable("it normalizes over a size that varies")
    statistics = (*x.dims[: x.ndim - own], *[()] * own)
    out, *rest = call.do()
    return [call.sizes.sized(out, x.dims), *(call.sizes.sized(r, statistics) for r in rest)]


def layer_norm_backward(call: Call) -> list[Sized | None]:
    x: Sized = call["input"]
    own = len(call["normalized_shape"])
    names = [n for n in ("grad_out", "input", "mean", "rstd") if n in call.given]
    only(call, *names)
    if call["grad_out"].dims != x.dims or any(map(is_padded, x.dims[x.ndim - own :])):
        raise NotProvable("it normalizes over a size that varies")
    filled = {name: call.sizes.all_filled(call[name], 0) for name in names}
    grad, *rest = call.do(**filled)
    return [
        None if grad is None else call.sizes.sized(grad, x.dims),
        *(None if r is None else Sized(r, one_of_each(r)) for r in rest),
    ]


def batch(*names: str, filled: bool = False) -> Callable[[Call], Any]:
    """The rule of an operator to which dim 0 of these arguments is a batch; all other dims are fixed.

    filled  what is not there becomes 0: it must not add to what is summed over the batch.
    """

    def rule(call: Call) -> Any:
        only(call, *names)
        tensors = [call[n] for n in names if isinstance(call[n], Sized)]
        dim = tensors[0].dims[0]
        one_factor(dim)
        for x in tensors:
            if x.dims[0] != dim or any(map(is_padded, x.dims[1:])):
                raise NotProvable("it works along a size that varies")
        given = {n: call[n] for n in names if isinstance(call[n], Sized)}
        if filled:
            given = {n: call.sizes.filled(x, [0], 0) for n, x in given.items()}
        results = call.do(**given)
        if isinstance(results, torch.Tensor):
            return _of(call, results, call.traced, dim)
        return [_of(call, r, t, dim) for r, t in zip(results, call.traced, strict=True)]

    return rule


def _of(call: Call, result: Any, traced: Any, dim: Any) -> Any:
    if not isinstance(result, torch.Tensor):
        return result
    dims = one_of_each(result)
    if traced is not None and traced.ndim and isinstance(traced.shape[0], torch.SymInt):
        dims = (dim, *dims[1:])
    return call.sizes.sized(result, dims)


def group_norm(call: Call) -> Any:
    """Sizes are given as numbers too: those of the room are meant."""
    names = [n for n in ("input", "grad_out", "mean", "rstd") if n in call.given]
    numbers = {n: call.plain(call[n]) for n in ("N", "C", "HxW")}
    plain = Call(call.op, {**call.given, **numbers}, call.sizes, call.traced)
    return batch(*names, filled=True)(plain)


def norm_by_statistics(call: Call) -> list[Sized]:
    """Batch norm that has its statistics: one scale and one shift for each channel."""
    x: Sized = call["input"]
    only(call, "input")
    if is_padded(x.dims[1]):
        raise NotProvable("it normalizes over a size that varies")
    out, *rest = call.do()
    return [call.sizes.sized(out, x.dims), *(Sized(r, one_of_each(r)) for r in rest)]


_IMAGES = batch("self")

RULES: dict[Any, Any] = {
    **dict.fromkeys((aten.native_layer_norm.default, aten._fused_rms_norm.default), layer_norm),
    **dict.fromkeys(
        (aten.native_layer_norm_backward.default, aten._fused_rms_norm_backward.default),
        layer_norm_backward,
    ),
    **dict.fromkeys(
        (aten.native_group_norm.default, aten.native_group_norm_backward.default), group_norm
    ),
    aten._native_batch_norm_legit_no_training.default: norm_by_statistics,
    aten.convolution.default: batch("input"),
    aten.convolution_backward.default: batch("grad_output", "input", filled=True),
    **dict.fromkeys((aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default), _IMAGES),
    aten.max_pool2d_with_indices.default: _IMAGES,
    aten.max_pool2d_with_indices_backward.default: batch(
        "grad_output", "self", "indices", filled=True
    ),
    **dict.fromkeys(
        (aten.avg_pool2d_backward.default, aten._adaptive_avg_pool2d_backward.default),
        batch("grad_output", "self"),
    ),
}
