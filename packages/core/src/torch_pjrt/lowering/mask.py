"""Lowerings of ops that write where a mask of bools is true. Mask and tensor broadcast together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from torch_pjrt.lowering.indexing import place_dtype
from torch_pjrt.lowering.promote import as_dtype
from torch_pjrt.lowering.table import LoweringTable

Array = jax.Array

aten = torch.ops.aten
table = LoweringTable("mask")


def _broadcast(*arrays: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    return [
        x
        if x.shape == shape
        else lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape)))
        for x in arrays
    ]


@table.lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(self: Array, mask: Array, value: Any) -> Array:
    """The result has the dtype of `self`, whatever that of `value`."""
    x, chosen = _broadcast(self, mask)
    return lax.select(chosen, lax.full(x.shape, as_dtype(value, x.dtype)), x)


def _rank(mask: Array) -> Array:
    """For each element of a flat mask, how many true ones come before it."""
    count = lax.cumsum(lax.convert_element_type(mask, place_dtype(mask.shape)))
    return lax.sub(count, lax.full_like(count, 1))


@table.lowers(aten.masked_scatter.default)
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    """The true places, in order, take the elements of `source` in order."""
    x, chosen = _broadcast(self, mask)
    if not source.size or not x.size:
        return x
    values = lax.reshape(source, (source.size,))
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    where = lax.expand_dims(_rank(lax.reshape(chosen, (chosen.size,))), (1,))
    # The rank is -1 before the first true place, where nothing is taken.
    taken = lax.gather(values, where, numbers, (1,), mode=lax.GatherScatterMode.CLIP)
    return lax.select(chosen, lax.reshape(taken, x.shape), x)


@table.lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: Sequence[int]) -> Array:
    """The gradients at the true places, in order, then zeros up to `sizes`."""
    grad, chosen = _broadcast(grad_output, mask)
    n_source = prod(sizes)
    chosen = lax.reshape(chosen, (chosen.size,))
    rank = _rank(chosen)
    where = lax.select(chosen, rank, lax.full_like(rank, n_source))
    source = lax.scatter(
        lax.full((n_source,), 0, grad.dtype),
        lax.expand_dims(where, (1,)),
        lax.reshape(grad, (grad.size,)),
        lax.ScatterDimensionNumbers((), (0,), (0,)),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )
    return lax.reshape(source, tuple(sizes))
