"""How the CPU lays out what it computes element by element, from several tensors that lie differently.

PyTorch's meta functions expand the tensors first, which gives added dims strides that they do not have
in the CPU's iterator. There dims that are repeated have none, and no say in the order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_pjrt.graph.tensor_spec import Strides, TensorSpec, contiguous_strides


def iterated_strides(
    shape: Sequence[int], specs: Sequence[TensorSpec], dtype: torch.dtype
) -> Strides:
    """Of a result of this shape, which is computed in `dtype`."""
    shape = tuple(shape)
    if all(spec.shape == shape for spec in specs):
        if all(spec.contiguous for spec in specs):
            return contiguous_strides(shape)
        if len({_cast_strides(spec, dtype) for spec in specs}) == 1 and specs[0].dense:
            return specs[0].strides
    operands = [_strides_in(shape, spec, dtype) for spec in specs]
    order = list(range(len(shape)))[::-1]  # from the fastest dim to the slowest
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            compared = _compared(order[before], order[at], operands, shape)
            if compared < 0:
                break
            if compared > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    if order == list(range(len(shape)))[::-1]:
        return contiguous_strides(shape)
    strides, next_stride = [0] * len(shape), 1
    for dim in order:
        strides[dim] = next_stride
        next_stride *= shape[dim]
    return tuple(strides)


def _cast_strides(spec: TensorSpec, dtype: torch.dtype) -> Strides:
    """Those of the tensor that is read: a copy, where the dtype is another."""
    if spec.dtype == dtype or spec.dense:
        return spec.strides
    return tuple(torch.empty_like(spec.meta(), dtype=dtype).stride())


def _strides_in(shape: Sequence[int], spec: TensorSpec, dtype: torch.dtype) -> Strides:
    """By dim of the result; 0 where the tensor is repeated."""
    added = len(shape) - len(spec.shape)
    own = [
        0 if n == 1 and shape[added + dim] != 1 else stride
        for dim, (n, stride) in enumerate(zip(spec.shape, _cast_strides(spec, dtype), strict=True))
    ]
    return (*[0] * added, *own)


def _compared(a: int, b: int, operands: Sequence[Strides], shape: Sequence[int]) -> int:
    """1 if dim `a` is the slower one, -1 if it is the faster, 0 if no tensor says."""
    for strides in operands:
        first, second = strides[a], strides[b]
        if not first or not second:
            continue
        if first != second:
            return 1 if first > second else -1
        if shape[a] > shape[b]:
            return 1
    return 0
