"""Padded tensors that are joined, enlarged, or made of one number: along a dim the size is another one."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.padding.dims import Unsuited, has_padding, joined, one_factor
from torch_pjrt.tensor.padding.padded_call import PaddedCall, Sized


def _sum(call: PaddedCall, a: Any, b: Any) -> Any:
    """Of two sizes: numbers, or int64 tensors."""
    if isinstance(b, int) and b == 0:
        return a
    if isinstance(a, int):
        return a + b if isinstance(b, int) else _sum(call, b, a)
    return call.record(aten.add.Tensor if isinstance(b, torch.Tensor) else aten.add.Scalar, a, b)


def cat(call: PaddedCall) -> Any:
    """Joined along a padded dim, each part is moved to where the true elements before it end."""
    given: list[Sized] = call["tensors"]
    # Empty tensors without dims are left out, but for their dtype.
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in given))
    parts = [x for x in given if x.dims != ((0,),)]
    d = call["dim"] % parts[0].ndim
    joined([x.dims for x in parts], but=d)
    for x in parts:
        one_factor(x.dims[d])
    if dtype != functools.reduce(torch.promote_types, (x.dtype for x in parts)):
        parts = [Sized(call.cast(x.tensor, dtype), x.dims) for x in parts]
    made = call.do(tensors=parts)
    dims = list(parts[0].dims)
    end: Any = 0
    for i, x in enumerate(parts):
        capacity = x.tensor.shape[d]
        if i and not isinstance(end, int):
            positions = call.record(aten.arange.default, capacity, dtype=torch.int64)
            positions = _sum(call, end, positions)
            same = call.cast(x.tensor, made.dtype)
            made = call.record(aten.index_copy.default, made, d, positions, same)
        end = _sum(call, end, call.size(x.dims[d]))
    dims[d] = call.resized(d, made.shape[d], end, [x.dims[d] for x in parts])
    return call.result(made, dims)


def constant_pad_nd(call: PaddedCall) -> Any:
    x: Sized = call["self"]
    pad, dims, added = call["pad"], list(x.dims), {}
    for i in range(len(pad) // 2):
        d, before, after = x.ndim - 1 - i, pad[2 * i], pad[2 * i + 1]
        if before or after:
            if has_padding(x.dims[d]) and (before < 0 or after < 0):
                raise Unsuited("it cuts a dim that varies")
            one_factor(x.dims[d])
            added[d] = before + after
    made = call.do(self=call.filled(x, added, call["value"]))
    for d, more in added.items():
        size = _sum(call, call.size(x.dims[d]), more)
        dims[d] = call.resized(d, made.shape[d], size, [x.dims[d], (more,)])
    return call.result(made, dims)


def new(call: PaddedCall) -> Any:
    return call.made_of(call.given.get("fill_value", int(call.op is aten.new_ones.default)))


RULES: dict[Any, Any] = {
    aten.cat.default: cat,
    aten.constant_pad_nd.default: constant_pad_nd,
    aten.new_empty.default: new,
    aten.new_full.default: new,
    aten.new_ones.default: new,
    aten.new_zeros.default: new,
}
