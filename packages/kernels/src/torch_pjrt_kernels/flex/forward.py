"""Attention with functions of scores, block by block: the softmax of `attention/blockwise.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import rules
from torch_pjrt_kernels.attention.blockwise import (
    State,
    along,
    by_blocks,
    from_blocks,
    keys_of,
    over_queries,
    product,
    products_of,
    rows_of,
    to_blocks,
)
from torch_pjrt_kernels.attention.form import MINUS_INFINITY, Sizes
from torch_pjrt_kernels.flex.block import Block, Mods
from torch_pjrt_kernels.flex.of_seen import sums_of_seen
from torch_pjrt_kernels.flex.visits import Table, Visits, visits_of

Array = jax.Array
Step = Callable[[State, Array, bool], State]
KeysAt = Callable[[Array], tuple[Array, Array]]


def forward(
    query: Array, key: Array, value: Array, scale: Any, mods: Mods, table: Table | None,
    sizes: Sizes, batch: Array, *, keys_at: KeysAt | None = None, apart: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The output, BHQV of the query's dtype; logsumexp and the greatest of the scores, BHQ of the softmax's.

    query   BHQW; key, value: BNKW and BNKV. batch: (B,), the numbers of the batches. A query that sees
            nothing gets zeros, and -inf.
    keys_at the keys and values of a block from its first key, BNKW and BNKV, where they do not lie in a row;
            `key` and `value` are then not read, and only say what theirs would look like.
    apart   whether values that a query does not see are to be nothing to it also where they are no numbers.
    """
    wide = rules.opmath(query.dtype)
    q = by_blocks(query, sizes)
    at = keys_at or _in_a_row(key, value, sizes)
    heads, size, width = sizes.heads, sizes.block_queries, value.shape[3]
    rows = (*heads, size)
    visits = visits_of(table, sizes, masks=mods.mask is not None)

    def of_queries(block: Array, made: State) -> State:
        first = block * np.int32(size)
        q_BNRW = rows_of(q, first, sizes)

        def step(state: State, first_key: Array, masked: bool) -> State:
            greatest, total, sums = state
            part = Block(mods, sizes, table, batch, first, first_key, masked)
            k_BNKW, v_BNKV = at(first_key)
            _, scores, seen = part.scores(product(q_BNRW, k_BNKW, 3, 3), scale)
            greater = lax.max(greatest, along(lax.reduce_max, scores))
            shift = lax.select(greater == MINUS_INFINITY, lax.full_like(greater, 0), greater)
            numerators, shrink = lax.exp(scores - shift), lax.exp(greatest - shift)
            total = total * shrink + along(lax.reduce_sum, numerators)
            weights = lax.convert_element_type(numerators, value.dtype)
            flat = products_of(sizes)
            weights = lax.reshape(weights, flat)
            if apart and seen is not None:
                weighted = sums_of_seen(weights, v_BNKV, lax.reshape(seen, flat))
            else:
                weighted = product(weights, v_BNKV, 3, 2)
            return greater, total, sums * shrink + lax.reshape(weighted, sums.shape)

        state = (
            lax.full((*rows, 1), MINUS_INFINITY, wide),
            lax.full((*rows, 1), 0, wide),
            lax.full((*rows, width), 0, wide),
        )
        greatest, total, sums = over_visits(step, state, visits, block, sizes)
        logsumexp = greatest + lax.log(total)
        divisor = lax.select(total == 0, lax.full_like(total, 1), total)
        out = lax.convert_element_type(sums / divisor, query.dtype)
        return tuple(
            lax.dynamic_update_slice_in_dim(all_, new, first, -2)
            for all_, new in zip(made, (out, logsumexp, greatest), strict=True)
        )

    of_all = (*heads, sizes.padded_queries)
    made = (lax.full((*of_all, width), 0, query.dtype), *[lax.full((*of_all, 1), 0, wide)] * 2)
    out, *others = over_queries(of_queries, made, sizes)
    logsumexp, greatest = (lax.squeeze(from_blocks(x, sizes), (3,)) for x in others)
    return from_blocks(out, sizes), logsumexp, greatest


def _in_a_row(key: Array, value: Array, sizes: Sizes) -> KeysAt:
    k, v = to_blocks(key, sizes), to_blocks(value, sizes)
    return lambda first: (keys_of(k, first, sizes), keys_of(v, first, sizes))


def over_visits(step: Step, state: State, visits: Visits, block: Array, sizes: Sizes) -> State:
    """`step` for each block of keys to look at, with its first key, and whether it is masked."""
    order = lax.dynamic_index_in_dim(visits.order, block, 0, keepdims=False)
    n_masked, n_seen = (
        lax.dynamic_index_in_dim(x, block, 0, keepdims=False)
        for x in (visits.n_masked, visits.n_seen)
    )

    def some(state: State, first: Any, end: Any, masked: bool) -> State:
        def body(at: Array, state: State) -> State:
            number = lax.dynamic_index_in_dim(order, at, 0, keepdims=False)
            return step(state, number * np.int32(sizes.block_keys), masked)

        return lax.fori_loop(first, end, body, state)

    state = some(state, np.int32(0), n_masked, True)
    return some(state, n_masked, n_masked + n_seen, False)
