"""Lowerings of ops that read or write along one dim, at indices given by a tensor of integers.

What every rule here keeps:
    index   as large as the tensor, or smaller: its extent is what is read or written. Its elements
            are never negative.
    sums    float16 and bfloat16 add up in float32 and are rounded once; bools add up by `or`.
    0-d     a tensor without dims counts as having one dim of size 1.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import along, at_least_1d, wrapped
from torch_pjrt.lowering.indexing import (
    IN_BOUNDS,
    How,
    Selection,
    along_dim,
    index_dtype,
    positions,
    scattered,
)
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("scatter")


def taken_along(x: Array, dim: int, index: Array) -> Array:
    """`x` at `index` along `dim`; along the other dims, at each element's own index."""
    if 0 in index.shape:
        return lax.full(index.shape, 0, x.dtype)
    limits = [x.shape[d] if d == dim else n for d, n in enumerate(index.shape)]
    x = lax.slice(x, (0,) * x.ndim, limits)
    others = tuple(d for d in range(x.ndim) if d != dim)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    where = lax.expand_dims(positions(index, x.shape[dim], negative=False), (x.ndim,))
    return lax.gather(x, where, numbers, (1,) * x.ndim, mode=IN_BOUNDS)


def scattered_along(x: Array, dim: int, index: Array, values: Array, how: How) -> Array:
    """`values`, at least as large as `index`, go where `taken_along` would read."""
    if 0 in index.shape:
        return x
    values = lax.slice(values, (0,) * x.ndim, index.shape)
    own = tuple(d for d in range(x.ndim) if d != dim and x.shape[d] == index.shape[d])
    given = tuple(d for d in range(x.ndim) if d not in own)
    dtype = index_dtype([x.shape[d] for d in given])
    columns = [
        positions(index, x.shape[d], dtype, negative=False)
        if d == dim
        else along(index.shape, d, dtype)
        for d in given
    ]
    columns = [lax.expand_dims(c, (x.ndim,)) for c in columns]
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=given,
        scatter_dims_to_operand_dims=given,
        operand_batching_dims=own,
        scatter_indices_batching_dims=own,
    )
    where = columns[0] if len(columns) == 1 else lax.concatenate(columns, x.ndim)
    return scattered(x, where, values, numbers, how)


@table.lowers(aten.gather.default)
def gather(self: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    taken = taken_along(at_least_1d(self), wrapped(dim, self.ndim), at_least_1d(index))
    return lax.reshape(taken, index.shape)


def _scatter(self: Array, dim: int, index: Array, src: Any, how: How) -> Array:
    x, index = at_least_1d(self), at_least_1d(index)
    values = as_dtype(src, x.dtype)
    if not values.ndim:
        values = lax.full(index.shape, values)
    return lax.reshape(scattered_along(x, wrapped(dim, self.ndim), index, values, how), self.shape)


_REDUCE: dict[str, How] = {"add": "add", "multiply": "mul"}


@table.lowers(aten.scatter.src, aten.scatter.value)
def scatter(self: Array, dim: int, index: Array, src: Any = None, value: Any = None) -> Array:
    return _scatter(self, dim, index, value if src is None else src, "set")


@table.lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_by(
    self: Array, dim: int, index: Array, src: Any = None, *, reduce: str, value: Any = None
) -> Array:
    return _scatter(self, dim, index, value if src is None else src, _REDUCE[reduce])


@table.lowers(aten.scatter_add.default)
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    return _scatter(self, dim, index, src, "add")


def _extreme(dtype: np.dtype, lowest: bool) -> Any:
    if dtype == np.bool_:
        return not lowest
    if jax.numpy.issubdtype(dtype, np.floating):
        return -np.inf if lowest else np.inf
    info = jax.numpy.iinfo(dtype)
    return info.min if lowest else info.max


def _folded(x: Array, values: Array, reduce: str, include_self: bool, write: Any) -> Array:
    """`x` with `values` folded in; `write(x, values, how)` puts them where they belong.

    Without `include_self` what is written to forgets what was there first. A mean of integers
    is rounded down.
    """
    how: How = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min"}[reduce]  # type: ignore[assignment]
    dtype = x.dtype
    if how == "max" or how == "min":
        neutral = _extreme(dtype, lowest=how == "max")
    else:
        neutral = 1 if how == "mul" else 0
    wide = opmath(dtype)
    x, values = lax.convert_element_type(x, wide), lax.convert_element_type(values, wide)
    start = x if include_self else write(x, lax.full_like(values, neutral), "set")
    result = write(start, values, how)
    if reduce == "mean":
        count_dtype = np.dtype(np.int64) if wide.kind in "iub" else wide
        count = lax.full(x.shape, 1 if include_self else 0, count_dtype)
        count = write(count, lax.full(values.shape, 1, count_dtype), "add")
        count = lax.convert_element_type(lax.max(count, lax.full_like(count, 1)), wide)
        result = jax.numpy.floor_divide(result, count) if wide.kind in "iu" else result / count
    return lax.convert_element_type(result, dtype)


@table.lowers(aten.scatter_reduce.two)
def scatter_reduce(
    self: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Array:
    x, at = at_least_1d(self), at_least_1d(index)
    axis = wrapped(dim, self.ndim)

    def write(x: Array, values: Array, how: How) -> Array:
        return scattered_along(x, axis, at, values, how)

    return lax.reshape(_folded(x, at_least_1d(src), reduce, include_self, write), self.shape)


def _by_index(self: Array, dim: int, index: Array, source: Array) -> tuple[Array, Array, Any]:
    """`self` and `source` with dims, and what writes along `dim` at a vector of indices."""
    x, dim = at_least_1d(self), wrapped(dim, self.ndim)
    selection = along_dim(x, dim, index)
    return x, lax.reshape(source, selection.shape), selection.write


@table.lowers(aten.index_add.default)
def index_add(self: Array, dim: int, index: Array, source: Array, *, alpha: Any = 1) -> Array:
    x, values, write = _by_index(self, dim, index, source)
    if not (isinstance(alpha, (bool, int, float)) and alpha == 1):
        wide = opmath(x.dtype)
        values = lax.convert_element_type(values, wide) * as_dtype(alpha, wide)
    return lax.reshape(write(x, values, "add"), self.shape)


@table.lowers(aten.index_copy.default)
def index_copy(self: Array, dim: int, index: Array, source: Array) -> Array:
    x, values, write = _by_index(self, dim, index, source)
    return lax.reshape(write(x, values, "set"), self.shape)


@table.lowers(aten.index_reduce.default)
def index_reduce(
    self: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    x, values, write = _by_index(self, dim, index, source)
    return lax.reshape(_folded(x, values, reduce, include_self, write), self.shape)


@table.lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: Array, dim: int, index: Array, value: Any) -> Array:
    """The indices along `dim` are marked in a vector first, so that the rest is elementwise."""
    x, dim = at_least_1d(self), wrapped(dim, self.ndim)
    size = (x.shape[dim],)
    chosen = Selection.of(size, [index]).write(lax.full(size, False), lax.full((), True), "set")
    mask = lax.broadcast_in_dim(chosen, x.shape, (dim,))
    filled = lax.select(mask, lax.full(x.shape, as_dtype(value, x.dtype)), x)
    return lax.reshape(filled, self.shape)
