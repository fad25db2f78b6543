"""The gradients of attention with functions of scores, block by block: `attention/blockwise_backward.py`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import rules
from torch_pjrt_kernels.attention.blockwise import (
    State,
    by_blocks,
    extended,
    from_blocks,
    keys_of,
    over_queries,
    product,
    products_of,
    rows_of,
    to_blocks,
)
from torch_pjrt_kernels.attention.blockwise_backward import added, cut, transposed
from torch_pjrt_kernels.attention.form import MINUS_INFINITY, Sizes
from torch_pjrt_kernels.flex.block import Block, Mods
from torch_pjrt_kernels.flex.forward import over_visits
from torch_pjrt_kernels.flex.visits import Table, visits_of

Array = jax.Array


class Given(NamedTuple):
    """What the forward had and gave, and the gradients of its results.

    grad_logsumexp   BHQ, or None where it is 0.
    """

    query: Array
    key: Array
    value: Array
    out: Array
    logsumexp: Array
    grad_out: Array
    grad_logsumexp: Array | None


def backward(
    of: Given, scale: Any, mods: Mods, table: Table | None, sizes: Sizes, batch: Array
) -> tuple[Array, ...]:
    """The gradients of query, key, value, and, in the softmax's dtype, of what `mods.score` reads."""
    query, key, value = of.query, of.key, of.value
    wide = rules.opmath(query.dtype)
    out, grad_out = (lax.convert_element_type(x, wide) for x in (of.out, of.grad_out))
    along = lax.reduce_sum(grad_out * out, (3,))
    if of.grad_logsumexp is not None:
        along = along - lax.convert_element_type(of.grad_logsumexp, wide)
    shift = lax.expand_dims(lax.convert_element_type(of.logsumexp, wide), (3,))
    shift = lax.select(shift == MINUS_INFINITY, lax.full_like(shift, np.inf), shift)
    q, g_out = by_blocks(query, sizes), by_blocks(of.grad_out, sizes)
    along_blocks = by_blocks(lax.expand_dims(along, (3,)), sizes)
    shift_blocks = by_blocks(extended(shift, 2, sizes.padded_queries, np.inf), sizes)
    k, v = to_blocks(key, sizes), to_blocks(value, sizes)
    size, factor = sizes.block_queries, lax.convert_element_type(scale, wide)
    visits = visits_of(table, sizes, masks=mods.mask is not None)
    flat = products_of(sizes)

    def of_queries(block: Array, made: State) -> State:
        first = block * np.int32(size)
        q_BNRW, grad_BNRV = rows_of(q, first, sizes), rows_of(g_out, first, sizes)
        grad_BNRV = lax.convert_element_type(grad_BNRV, value.dtype)
        q_BNWR, grad_BNVR = transposed(q_BNRW), transposed(grad_BNRV)
        shift, along = (
            lax.dynamic_slice_in_dim(x, first, size, -2) for x in (shift_blocks, along_blocks)
        )

        def step(state: State, first_key: Array, masked: bool) -> State:
            of_query, of_keys, of_values, *of_read = state
            part = Block(mods, sizes, table, batch, first, first_key, masked)
            k_BNKW, v_BNKV = keys_of(k, first_key, sizes), keys_of(v, first_key, sizes)
            plain, scores, seen = part.scores(product(q_BNRW, k_BNKW, 3, 3), scale)
            weights = lax.exp(scores - shift)
            of_weights = lax.reshape(product(grad_BNRV, v_BNKV, 3, 3), scores.shape)
            of_scores = lax.reshape(weights * (of_weights - along), plain.shape)
            narrow = lax.reshape(lax.convert_element_type(weights, value.dtype), flat)
            of_values = added(of_values, grad_BNVR, narrow, first_key)
            if mods.gradient is not None:
                of_scores, *new = mods.gradient(plain, *part.numbers(), of_scores)
                of_read = [
                    x + lax.convert_element_type(y, wide) for x, y in zip(of_read, new, strict=True)
                ]
                if seen is not None:
                    of_scores = lax.select(seen, of_scores, lax.full_like(of_scores, 0))
            narrow = lax.reshape(lax.convert_element_type(of_scores, query.dtype), flat)
            of_keys = added(of_keys, q_BNWR, narrow, first_key)
            return of_query + product(narrow, k_BNKW, 3, 2), of_keys, of_values, *of_read

        of_all, *others = made
        state = (lax.full(q_BNRW.shape, 0, wide), *others)
        found = over_visits(step, state, visits, block, sizes)
        new = lax.reshape(found[0] * factor, (*sizes.heads, size, query.shape[3]))
        new = lax.convert_element_type(new, query.dtype)
        return lax.dynamic_update_slice_in_dim(of_all, new, first, -2), *found[1:]

    made: State = (
        lax.full(q.shape, 0, query.dtype),
        *(lax.full(x.shape, 0, wide) for x in (k, v)),
        *(lax.full(x.shape, 0, wide) for x in mods.read),
    )
    of_query, of_key, of_value, *of_read = over_queries(of_queries, made, sizes)
    return (
        from_blocks(of_query, sizes),
        cut(of_key * factor, key),
        cut(of_value, value),
        *of_read,
    )
