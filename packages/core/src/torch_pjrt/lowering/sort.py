"""Lowerings of ops that order elements, or find one by its place in the order.

What every rule here keeps:
    nan         is larger than any number, infinity included.
    ties        `sort` keeps the order of equal elements. Elsewhere any of them may be named.
    indices     int64.
    0-d         a tensor without dims counts as having one dim of size 1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import (
    INT64,
    along,
    at_least_1d,
    cut,
    moved_from_last,
    moved_last,
    wrapped,
)
from torch_pjrt.lowering.indexing import index_dtype
from torch_pjrt.lowering.scatter import taken_along
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array
Pair = tuple[Array, Array]

table = LoweringTable("sort")


def sorted_along(x: Array, dim: int, descending: bool = False) -> Pair:
    """The elements in order, and their indices as narrow integers. Stable."""
    position = along(x.shape, dim, index_dtype((x.shape[dim],)))
    if not descending:
        values, order = lax.sort((x, position), dimension=dim, is_stable=True, num_keys=1)
        return values, order
    # Reversed before and after: the sort is then stable in the given order, and nan comes first.
    values, order = lax.sort(
        (lax.rev(x, (dim,)), lax.rev(position, (dim,))), dimension=dim, is_stable=True, num_keys=1
    )
    return lax.rev(values, (dim,)), lax.rev(order, (dim,))


def _as_pair(values: Array, positions: Array, shape: tuple[int, ...]) -> Pair:
    return lax.reshape(values, shape), lax.reshape(
        lax.convert_element_type(positions, INT64), shape
    )


@table.lowers(aten.sort.default)
def sort(self: Array, dim: int = -1, descending: bool = False) -> Pair:
    x = at_least_1d(self)
    return _as_pair(*sorted_along(x, wrapped(dim, self.ndim), descending), self.shape)


@table.lowers(aten.sort.stable)
def sort_stable(
    self: Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Pair:
    return sort(self, dim, descending)


@table.lowers(aten.topk.default)
def topk(self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    """Always sorted."""
    dim = wrapped(dim, self.ndim)
    x = moved_last(at_least_1d(self), dim)
    shape = (*x.shape[:-1], k)
    if not k or not x.size:
        positions = lax.full(shape, 0, INT64)
        return moved_from_last(lax.full(shape, 0, x.dtype), dim), moved_from_last(positions, dim)
    # `lax.top_k` follows the total order, in which a nan's sign decides its end.
    floating = jnp.issubdtype(x.dtype, np.floating)
    if floating:
        x = lax.select(lax.ne(x, x), lax.full_like(x, np.nan), x)
    values, positions = lax.top_k(x if largest else _reversed_order(x), k)
    values = values if largest else _reversed_order(values)
    values, positions = moved_from_last(values, dim), moved_from_last(positions, dim)
    return _as_pair(values, positions, values.shape if self.ndim else ())


def _reversed_order(x: Array) -> Array:
    """Turns the order of the elements round, that of nans by their sign; its own inverse."""
    if x.dtype == np.bool_ or x.dtype.kind in "iu":
        return lax.bitwise_not(x)
    return lax.neg(x)


def _picked(values: Array, positions: Array, nth: Array | int, dim: int, keepdim: bool) -> Pair:
    """The `nth` of the sorted elements along `dim`; `nth` may differ from row to row."""
    if isinstance(nth, int):
        value, position = (lax.slice_in_dim(a, nth, nth + 1, axis=dim) for a in (values, positions))
    else:
        value, position = (taken_along(a, dim, nth) for a in (values, positions))
    shape = list(value.shape)
    if not keepdim:
        del shape[dim]
    return _as_pair(value, position, tuple(shape))


def _ordered(self: Array, dim: int) -> tuple[Array, Array, int]:
    x, dim = at_least_1d(self), wrapped(dim, self.ndim)
    values, positions = sorted_along(x, dim)
    return values, positions, dim


@table.lowers(aten.kthvalue.default)
def kthvalue(self: Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    if not self.ndim:
        return self, lax.full((), 0, INT64)
    values, positions, dim = _ordered(self, dim)
    return _picked(values, positions, k - 1, dim, keepdim)


def _median(self: Array, dim: int, keepdim: bool, ignore_nan: bool) -> Pair:
    """The lower of two middle elements. A row with a nan has that for median, unless ignored."""
    if not self.ndim:
        return self, lax.full((), 0, INT64)
    values, positions, dim = _ordered(self, dim)
    size = values.shape[dim]
    if not jnp.issubdtype(values.dtype, np.floating):
        return _picked(values, positions, (size - 1) // 2, dim, keepdim)
    numbers = jnp.sum(lax.eq(values, values), axis=dim, keepdims=True, dtype=positions.dtype)
    middle = jnp.maximum(numbers - 1, 0) // 2
    if not ignore_nan:
        middle = lax.select(numbers == size, middle, numbers)
    return _picked(values, positions, middle, dim, keepdim)


@table.lowers(aten.median.dim)
def median_dim(self: Array, dim: int, keepdim: bool = False) -> Pair:
    return _median(self, dim, keepdim, ignore_nan=False)


@table.lowers(aten.nanmedian.dim)
def nanmedian_dim(self: Array, dim: int, keepdim: bool = False) -> Pair:
    return _median(self, dim, keepdim, ignore_nan=True)


def _median_of_all(self: Array, ignore_nan: bool) -> Array:
    """Of no elements: nan; for integers, PyTorch's nan turned into an integer."""
    if not self.size:
        floating = jnp.issubdtype(self.dtype, np.floating)
        return lax.full((), np.nan if floating else jnp.iinfo(self.dtype).min, self.dtype)
    return _median(lax.reshape(self, (self.size,)), 0, False, ignore_nan)[0]


@table.lowers(aten.median.default)
def median(self: Array) -> Array:
    return _median_of_all(self, ignore_nan=False)


@table.lowers(aten.nanmedian.default)
def nanmedian(self: Array) -> Array:
    return _median_of_all(self, ignore_nan=True)


@table.lowers(aten.mode.default)
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """The smallest of the most frequent elements, and an index where it stands."""
    if not self.ndim:
        return self, lax.full((), 0, INT64)
    values, positions, dim = _ordered(self, dim)
    size = values.shape[dim]
    position = along(values.shape, dim, positions.dtype)
    if size > 1:
        changes = lax.ne(cut(values, dim, 1, size), cut(values, dim, 0, size - 1))
        first = lax.full_like(cut(changes, dim, 0, 1), True)
        begins = lax.concatenate([first, changes], dim)
    else:
        begins = lax.full(values.shape, True)
    # How long the run of equal elements is that ends here.
    begin = lax.cummax(lax.select(begins, position, lax.full_like(position, 0)), axis=dim)
    length = lax.sub(position, begin)
    best = lax.expand_dims(lax.argmax(length, dim, positions.dtype), (dim,))
    return _picked(values, positions, best, dim, keepdim)
