"""Lowerings of what finds the different elements, or rows, of a tensor.

How many there are only the values decide, so the results have room for as many as the tensor has; the
room that is left is 0. `count` says how many elements are there to begin with (all, if None).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt import operators
from torch_pjrt.lowering.dims import INT64, along
from torch_pjrt.lowering.indexing import index_dtype
from torch_pjrt.lowering.table import LoweringTable

Array = jax.Array
Found = tuple[Array, Array, Array, Array]

table = LoweringTable("unique")


def _is_there(x: Array, count: Array | None) -> Array:
    position = along(x.shape[:1], 0, INT64)
    return lax.full(position.shape, True) if count is None else position < count


def _ordered(x: Array, there: Array) -> Array:
    """The indices of the rows in order; those not there come last. Nan is larger than any number."""
    order = along(x.shape[:1], 0, index_dtype(x.shape))
    absent = lax.bitwise_not(there)
    if x.ndim == 1:
        return lax.sort((absent, x, order), num_keys=2, is_stable=True)[2]

    def by_column(i: Array, order: Array) -> Array:
        column = lax.dynamic_index_in_dim(x, x.shape[1] - 1 - i, 1, keepdims=False)
        return lax.sort((column[order], order), num_keys=1, is_stable=True)[1]

    order = lax.fori_loop(0, x.shape[1], by_column, order)
    return lax.sort((absent[order], order), num_keys=1, is_stable=True)[1]


@table.lowers(operators.unique, operators.unique_rows)
def unique(self: Array, count: Array | None, consecutive: bool) -> Found:
    """Elements are in order and counted where they differ from the one before; nan differs from itself."""
    size = self.shape[0]
    if not size:
        none = lax.full((0,), 0, INT64)
        return self, none, none, lax.full((), 0, INT64)
    there = _is_there(self, count)
    order = None if consecutive else _ordered(self, there)
    x = self if order is None else self[order]
    there = there if order is None else there[order]
    differs = x[1:] != x[:-1]
    if self.ndim > 1:
        differs = jnp.any(differs, 1)
    first = lax.bitwise_and(there, lax.concatenate([lax.full((1,), True), differs], 0))
    narrow = index_dtype((size,))
    rank = lax.cumsum(lax.convert_element_type(first, narrow)) - np.ones((), narrow)
    n = lax.convert_element_type(rank[-1], INT64) + 1
    rank = lax.select(there, rank, lax.full_like(rank, size))  # the room's end: it is not written
    values = (
        jnp.zeros_like(self)
        .at[lax.select(first, rank, lax.full_like(rank, size))]
        .set(x, mode="drop")
    )
    counts = jnp.zeros(size, INT64).at[rank].add(1, mode="drop")
    inverse = lax.select(there, rank, lax.full_like(rank, 0)).astype(INT64)
    if order is not None:
        inverse = jnp.zeros(size, INT64).at[order].set(inverse, mode="drop")
    return values, inverse, counts, n
