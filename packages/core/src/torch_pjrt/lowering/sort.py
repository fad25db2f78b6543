"""Lowerings of ops that order elements, or find their place in an order.

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
import torch
from jax import lax

from torch_pjrt.lowering.dims import (
    INT64,
    along,
    at_least_1d,
    moved_from_last,
    moved_last,
    wrapped,
)
from torch_pjrt.lowering.indexing import place_dtype
from torch_pjrt.lowering.table import LoweringTable

Array = jax.Array
Pair = tuple[Array, Array]

aten = torch.ops.aten
table = LoweringTable("sort")


def sorted_along(x: Array, dim: int, descending: bool = False) -> Pair:
    """The elements in order, and their places as narrow integers. Stable."""
    place = along(x.shape, dim, place_dtype((x.shape[dim],)))
    if not descending:
        values, order = lax.sort((x, place), dimension=dim, is_stable=True, num_keys=1)
        return values, order
    # Reversed before and after: the sort is then stable in the given order, and nan comes first.
    values, order = lax.sort(
        (lax.rev(x, (dim,)), lax.rev(place, (dim,))), dimension=dim, is_stable=True, num_keys=1
    )
    return lax.rev(values, (dim,)), lax.rev(order, (dim,))


def _as_pair(values: Array, places: Array, shape: tuple[int, ...]) -> Pair:
    return lax.reshape(values, shape), lax.reshape(lax.convert_element_type(places, INT64), shape)


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
        places = lax.full(shape, 0, INT64)
        return moved_from_last(lax.full(shape, 0, x.dtype), dim), moved_from_last(places, dim)
    # `lax.top_k` follows the total order, in which a nan's sign decides its end.
    floating = jnp.issubdtype(x.dtype, np.floating)
    if floating:
        x = lax.select(lax.ne(x, x), lax.full_like(x, np.nan), x)
    values, places = lax.top_k(x if largest else _reversed_order(x), k)
    values = values if largest else _reversed_order(values)
    values, places = moved_from_last(values, dim), moved_from_last(places, dim)
    return _as_pair(values, places, values.shape if self.ndim else ())


def _reversed_order(x: Array) -> Array:
    """Turns the order of the elements round, that of nans by their sign; its own inverse."""
    if x.dtype == np.bool_ or x.dtype.kind in "iu":
        return lax.bitwise_not(x)
    return lax.neg(x)
