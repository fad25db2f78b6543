"""Which blocks of keys a block of queries looks at, where a table says what is hidden.

A table has a row for each so many queries and a column for each so many keys, of some heads: its own, sparse,
blocks. Blocks that are computed at once are several of these, or parts of one, and have all heads in common.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt_kernels.attention.form import Sizes

Array = jax.Array
INT32 = np.dtype(np.int32)

HIDDEN, MASKED, SEEN = 0, 1, 2


class Table(NamedTuple):
    """What a mask says of its blocks.

    states   (B or 1, H or 1, rows, columns) of HIDDEN, MASKED (the mask decides), SEEN (as a whole). There
             are as many rows and columns as padded queries and keys need.
    block    how many queries a row stands for, and how many keys a column.
    """

    states: Array
    block: tuple[int, int]

    def of(self, first_query: Array, first_key: Array, sizes: Sizes) -> Array:
        """The states of a block of scores: BHQK, each of B and H or 1."""
        found = self.states
        firsts, wanted = (first_query, first_key), sizes.scores[-2:]
        for dim, first, size, n in zip((2, 3), firsts, self.block, wanted, strict=True):
            n_rows = max(n // size, 1)
            found = lax.dynamic_slice_in_dim(found, lax.div(first, np.int32(size)), n_rows, dim)
            found = jnp.repeat(found, n // n_rows, axis=dim)
        return found


class Visits(NamedTuple):
    """For each block of queries: blocks of keys, those first that are masked, then those that are not.

    order   (query_blocks, key_blocks). n_masked, n_seen: (query_blocks,), how many of each; the others are
            not looked at.
    """

    order: Array
    n_masked: Array
    n_seen: Array


def table_of(lists: tuple[Any, ...], block: tuple[int, int], sizes: Sizes) -> Table:
    """From what a `BlockMask` has: how many masked blocks, which; how many whole ones, which, or None."""
    n_masked, masked, n_seen, seen = lists
    states = _marked(n_masked, masked, MASKED)
    if n_seen is not None and seen is not None:
        states = lax.max(states, _marked(n_seen, seen, SEEN))
    wanted = (-(-sizes.padded_queries // block[0]), -(-sizes.padded_keys // block[1]))
    missing = [max(w - n, 0) for w, n in zip(wanted, states.shape[2:], strict=True)]
    states = jnp.pad(states, ((0, 0), (0, 0), (0, missing[0]), (0, missing[1])))
    return Table(states, block)


def _marked(counts: Array, columns: Array, state: int) -> Array:
    """The first `counts` of a row's columns have the state, the others are hidden."""
    b, h, rows, n = columns.shape
    listed = lax.broadcasted_iota(INT32, columns.shape, 3) < counts[..., None].astype(INT32)
    at = jnp.where(listed, columns.astype(INT32), np.int32(n))
    rows_of = [lax.broadcasted_iota(INT32, columns.shape, d) for d in range(3)]
    empty = jnp.zeros((b, h, rows, n + 1), INT32)
    return empty.at[(*rows_of, at)].set(np.int32(state))[..., :n]


def visits_of(table: Table | None, sizes: Sizes, *, masks: bool) -> Visits:
    """The blocks of scores to compute. Without a table all are, and masked where there is a mask."""
    n_queries, n_keys = sizes.n_query_blocks, sizes.n_key_blocks
    if table is None:
        some = every = jnp.full((n_queries, n_keys), MASKED if masks else SEEN, INT32)
    else:
        some, every = (
            _folded(table, (n_queries, n_keys), sizes, fold, axes)
            for fold, axes in ((jnp.max, (0, 1)), (jnp.min, (0, 1)))
        )
    filled = lax.broadcasted_iota(INT32, (n_queries, n_keys), 1) >= sizes.keys // sizes.block_keys
    rank = jnp.where((every == SEEN) & ~filled, np.int32(1), np.int32(0))
    rank = jnp.where(some == HIDDEN, np.int32(2), rank)
    order = jnp.argsort(rank, axis=1, stable=True).astype(INT32)
    counts = [(rank == np.int32(r)).sum(1, dtype=INT32) for r in (0, 1)]
    return Visits(order, *counts)


def _folded(
    table: Table, wanted: tuple[int, int], sizes: Sizes, fold: Any, axes: tuple[int, ...]
) -> Array:
    """The most or least of the states in each block that is computed."""
    found = fold(table.states, axis=axes)
    for dim, n in enumerate(wanted):
        size, computed = table.block[dim], sizes.scores[dim - 2]
        if computed >= size:
            n_each = computed // size
            found = lax.slice_in_dim(found, 0, n * n_each, axis=dim)
            found = fold(
                found.reshape(*found.shape[:dim], n, n_each, *found.shape[dim + 1 :]), axis=dim + 1
            )
        else:
            found = lax.slice_in_dim(jnp.repeat(found, size // computed, axis=dim), 0, n, axis=dim)
    return found
