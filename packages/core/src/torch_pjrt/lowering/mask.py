"""Lowerings of ops that write, or find, where a mask is true. Mask and tensor broadcast together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_pjrt import operators
from torch_pjrt.lowering.dims import INT64, along
from torch_pjrt.lowering.indexing import index_dtype
from torch_pjrt.lowering.promote import as_dtype
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("mask")


def _broadcast(*arrays: Array) -> list[Array]:
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
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
    count = lax.cumsum(lax.convert_element_type(mask, index_dtype(mask.shape)))
    return lax.sub(count, lax.full_like(count, 1))


@table.lowers(aten.masked_scatter.default)
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    """Where the mask is true, elements of `source` are put, in order."""
    x, chosen = _broadcast(self, mask)
    if not source.size or not x.size:
        return x
    values = lax.reshape(source, (source.size,))
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    where = lax.expand_dims(_rank(lax.reshape(chosen, (chosen.size,))), (1,))
    # The rank is -1 before the first true element, where nothing is taken.
    taken = lax.gather(values, where, numbers, (1,), mode=lax.GatherScatterMode.CLIP)
    return lax.select(chosen, lax.reshape(taken, x.shape), x)


@table.lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: Sequence[int]) -> Array:
    """The gradients where the mask is true, in order, then zeros up to `sizes`."""
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


@table.lowers(operators.fill_rest, static=("value",))
def fill_rest(self: Array, count: Array, dim: int, scale: int, value: Any) -> Array:
    """Cheap: compared with a counter, it fuses with its reader."""
    rest = along(self.shape, dim, INT64) >= count * scale
    return lax.select(rest, lax.full(self.shape, as_dtype(value, self.dtype)), self)


@table.lowers(aten.nonzero_static.default)
def nonzero_static(self: Array, *, size: int, fill_value: int = -1) -> Array:
    """The indices of what is not 0, one a row; `fill_value` where there are fewer than `size`."""
    if not self.ndim or not self.size or not size:
        full = lax.full((size, self.ndim), fill_value, INT64)
        return full
    chosen = lax.reshape(lax.ne(self, lax.full_like(self, 0)), (self.size,))
    where = lax.select(
        chosen, _rank(chosen), lax.full(chosen.shape, size, index_dtype(chosen.shape))
    )
    flat = lax.scatter(
        lax.full((size,), self.size, where.dtype),
        lax.expand_dims(where, (1,)),
        along(chosen.shape, 0, where.dtype),
        lax.ScatterDimensionNumbers((), (0,), (0,)),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )
    found = jnp.stack(jnp.unravel_index(flat, self.shape), 1).astype(INT64)
    absent = lax.broadcast_in_dim(flat == self.size, found.shape, (0,))
    return lax.select(absent, lax.full_like(found, fill_value), found)
