"""The gradients of attention block by block: the scores of one block are made again, from the logsumexp.

Dao, Fu, Ermon, Rudra, Ré, "FlashAttention" (2022), algorithm 4. Blocks of queries are outside. The gradients
of a block of keys and of values are made transposed, from queries that are, once for each block: XLA's CPU
compiler has its fast routine for the wide factor, the scores, only where it comes second and the first one
lies by rows.
"""

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
    over_keys,
    over_queries,
    padded,
    product,
    products_of,
    rows_of,
    scale_of_queries,
    scaled,
    to_blocks,
)
from torch_pjrt_kernels.attention.form import MINUS_INFINITY, Block, Form, Sizes, of_heads, ranges

Array = jax.Array


class Gradients(NamedTuple):
    """Of query, key and value, in their dtypes; of the bias, and of the sinks, where they are wanted."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    sinks: Array | None


def backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    form: Form,
    sizes: Sizes,
    *,
    of_bias: bool = False,
) -> Gradients:
    """The gradients of what `forward` was given. `out`, `logsumexp` are what it gave; `grad_out` is BHQV.

    of_bias   whether that of the bias is wanted, which has the bias's shape.
    """
    wide = rules.opmath(query.dtype)
    along = lax.reduce_sum(_wide(grad_out, wide) * _wide(out, wide), (3,))
    along = lax.expand_dims(along, (3,))
    # A query that fills up a block has weights of 0; so has one that sees nothing.
    shift = lax.expand_dims(lax.convert_element_type(logsumexp, wide), (3,))
    shift = lax.select(shift == MINUS_INFINITY, lax.full_like(shift, np.inf), shift)
    q, g_out = by_blocks(query, sizes), by_blocks(grad_out, sizes)
    along_blocks = by_blocks(along, sizes)
    shift_blocks = by_blocks(extended(shift, 2, sizes.padded_queries, np.inf), sizes)
    k, v, whole = to_blocks(key, sizes), to_blocks(value, sizes), form
    form, scale = scale_of_queries(padded(form, sizes), query.dtype)
    size, share = sizes.block_queries, np.asarray(1 / max(1 - form.dropout_p, 1e-38), wide)
    factor = lax.convert_element_type(whole.scale, wide)

    def of_queries(block: Array, made: State) -> State:
        first = block * np.int32(size)
        q_BNRW = scaled(rows_of(q, first, sizes), scale)
        grad_BNRV = lax.convert_element_type(rows_of(g_out, first, sizes), value.dtype)
        q_BNWR, grad_BNVR = transposed(q_BNRW), transposed(grad_BNRV)
        shift, along = (
            lax.dynamic_slice_in_dim(x, first, size, -2) for x in (shift_blocks, along_blocks)
        )

        def step(state: State, first_key: Array, masked: bool) -> State:
            of_query, of_keys, of_values, *rest = state
            part = Block(form, sizes, first, first_key, masked)
            k_BNKW, v_BNKV = keys_of(k, first_key, sizes), keys_of(v, first_key, sizes)
            scores, growth = part.scores(product(q_BNRW, k_BNKW, 3, 3))
            weights = lax.exp(scores - shift)
            of_weights = lax.reshape(product(grad_BNRV, v_BNKV, 3, 3), scores.shape)
            kept = weights
            if form.dropout_p:
                of_weights = part.dropped(of_weights) * share
                kept = part.dropped(weights) * share
            of_scores = weights * (of_weights - along)
            flat = products_of(sizes)
            kept_BNRK = lax.reshape(lax.convert_element_type(kept, value.dtype), flat)
            of_values = added(of_values, grad_BNVR, kept_BNRK, first_key)
            if rest:
                rest = [_added_to_bias(rest[0], of_scores, part)]
            if growth is not None:
                of_scores = of_scores * growth
            narrow = lax.reshape(lax.convert_element_type(of_scores, query.dtype), flat)
            of_keys = added(of_keys, q_BNWR, narrow, first_key)
            return of_query + product(narrow, k_BNKW, 3, 2), of_keys, of_values, *rest

        of_all, *others = made
        state = (lax.full(q_BNRW.shape, 0, wide), *others)
        found = over_keys(step, state, ranges(form, sizes, block), form, sizes)
        new = lax.reshape(found[0] * factor, (*sizes.heads, size, query.shape[3]))
        new = lax.convert_element_type(new, query.dtype)
        return lax.dynamic_update_slice_in_dim(of_all, new, first, -2), *found[1:]

    made: State = (
        lax.full(q.shape, 0, query.dtype),
        *(lax.full(x.shape, 0, wide) for x in (k, v)),
    )
    if of_bias and form.bias is not None:
        made = (*made, lax.full(form.bias.shape, 0, wide))
    of_query, of_key, of_value, *rest = over_queries(of_queries, made, sizes)
    of_sinks = None
    if form.sinks is not None:
        sunk = lax.exp(of_heads(form.sinks, sizes, wide) - shift_blocks) * along_blocks
        folded = (0, sunk.ndim - 2, sunk.ndim - 1)
        of_sinks = lax.neg(lax.reshape(lax.reduce_sum(sunk, folded), form.sinks.shape))
        of_sinks = lax.convert_element_type(of_sinks, form.sinks.dtype)
    return Gradients(
        from_blocks(of_query, sizes),
        cut(of_key if scale is not None else of_key * factor, key),
        cut(of_value, value),
        cut(rest[0], whole.bias) if rest and whole.bias is not None else None,
        of_sinks,
    )


def _wide(x: Array, dtype: np.dtype) -> Array:
    return lax.convert_element_type(x, dtype)


def cut(x: Array, like: Array) -> Array:
    """A sum that was made in whole blocks, as what it is the gradient of."""
    return lax.convert_element_type(lax.slice(x, (0,) * x.ndim, like.shape), like.dtype)


def transposed(x: Array) -> Array:
    """Matrices, of which each batch and head has one."""
    return lax.transpose(x, (0, 1, 3, 2))


def added(all_BNKW: Array, x_BNWR: Array, y_BNRK: Array, first: Any) -> Array:
    """The sums with those of a block of keys added: the transposed products of the others.

    The barrier keeps XLA from turning the product round again.
    """
    new = transposed(lax.optimization_barrier(product(x_BNWR, y_BNRK, 3, 2)))
    before = lax.dynamic_slice_in_dim(all_BNKW, first, new.shape[2], 2)
    return lax.dynamic_update_slice_in_dim(all_BNKW, before + new, first, 2)


def _added_to_bias(all_: Array, of_scores: Array, part: Block) -> Array:
    """The gradient of a bias with that of a block of scores: summed over dims along which it is one."""
    b, h, q, k = all_.shape
    last = of_scores.ndim - 1
    of_heads = ((dim, h) for dim in range(1, last - 1))
    dims = ((0, b), *of_heads, (last - 1, q), (last, k))
    summed = tuple(dim for dim, size in dims if size == 1)
    new = lax.reduce_sum(of_scores, summed) if summed else of_scores
    n_queries = 1 if q == 1 else part.sizes.block_queries
    n_keys = 1 if k == 1 else part.sizes.block_keys
    new = lax.reshape(new, (b, h, n_queries, n_keys))
    zero = np.int32(0)
    first = (zero, zero, zero if q == 1 else part.first_query, zero if k == 1 else part.first_key)
    before = lax.dynamic_slice(all_, first, new.shape)
    return lax.dynamic_update_slice(all_, before + new, first)
