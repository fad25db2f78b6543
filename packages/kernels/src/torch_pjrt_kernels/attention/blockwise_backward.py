"""The gradients of attention block by block: the scores of one block are made again, from the logsumexp.

Dao, Fu, Ermon, Rudra, Ré, "FlashAttention" (2022), algorithm 4. Blocks of queries are outside. The gradients
of keys and values are added up transposed: so the wide factor of their products, the scores, comes second,
which XLA's CPU compiler has a fast routine for.
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
    rows_of,
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
    form = padded(form, sizes)
    b, n, g = sizes.scores[:3]
    size, share = sizes.block_queries, np.asarray(1 / max(1 - form.dropout_p, 1e-38), wide)
    factor = lax.convert_element_type(form.scale, wide)

    def of_queries(block: Array, made: State) -> State:
        first = block * np.int32(size)
        q_BNRW, grad_BNRV = rows_of(q, first, sizes), rows_of(g_out, first, sizes)
        grad_BNRV = lax.convert_element_type(grad_BNRV, value.dtype)
        shift, along = (
            lax.dynamic_slice_in_dim(x, first, size, 3) for x in (shift_blocks, along_blocks)
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
            flat = (b, n, g * size, sizes.block_keys)
            kept_BNRK = lax.reshape(lax.convert_element_type(kept, value.dtype), flat)
            of_values = added(of_values, product(grad_BNRV, kept_BNRK, 2, 2), first_key, 3)
            if rest:
                rest = [_added_to_bias(rest[0], of_scores, part)]
            if growth is not None:
                of_scores = of_scores * growth
            narrow = lax.reshape(lax.convert_element_type(of_scores, query.dtype), flat)
            of_keys = added(of_keys, product(q_BNRW, narrow, 2, 2), first_key, 3)
            return of_query + product(narrow, k_BNKW, 3, 2), of_keys, of_values, *rest

        of_all, *others = made
        state = (lax.full(q_BNRW.shape, 0, wide), *others)
        found = over_keys(step, state, ranges(form, sizes, block), form, sizes)
        new = lax.reshape(found[0] * factor, (b, n, g, size, query.shape[3]))
        new = lax.convert_element_type(new, query.dtype)
        return lax.dynamic_update_slice_in_dim(of_all, new, first, 3), *found[1:]

    made: State = (
        lax.full(q.shape, 0, query.dtype),
        *(lax.full((b, n, x.shape[3], sizes.padded_keys), 0, wide) for x in (key, value)),
    )
    if of_bias and form.bias is not None:
        made = (*made, lax.full(form.bias.shape, 0, wide))
    of_query, of_key, of_value, *rest = over_queries(of_queries, made, sizes)
    of_sinks = None
    if form.sinks is not None:
        sunk = lax.exp(of_heads(form.sinks, sizes, wide) - shift_blocks) * along_blocks
        of_sinks = lax.neg(lax.reshape(lax.reduce_sum(sunk, (0, 3, 4)), form.sinks.shape))
        of_sinks = lax.convert_element_type(of_sinks, form.sinks.dtype)
    return Gradients(
        from_blocks(of_query, sizes),
        turned(of_key * factor, key),
        turned(of_value, value),
        _cut(rest[0], whole.bias) if rest and whole.bias is not None else None,
        of_sinks,
    )


def _wide(x: Array, dtype: np.dtype) -> Array:
    return lax.convert_element_type(x, dtype)


def turned(x_BNWK: Array, like_BNKW: Array) -> Array:
    """A sum that was made transposed and in whole blocks, as what it is the gradient of: BNKW."""
    x = lax.slice_in_dim(x_BNWK, 0, like_BNKW.shape[2], axis=3)
    return lax.convert_element_type(lax.transpose(x, (0, 1, 3, 2)), like_BNKW.dtype)


def _cut(x: Array, like: Array) -> Array:
    x = lax.slice(x, (0,) * x.ndim, like.shape)
    return lax.convert_element_type(x, like.dtype)


def added(all_: Array, new: Array, first: Any, dim: int) -> Array:
    """The sums with those of a block added, which begins at `first` along a dim."""
    before = lax.dynamic_slice_in_dim(all_, first, new.shape[dim], dim)
    return lax.dynamic_update_slice_in_dim(all_, before + new, first, dim)


def _added_to_bias(all_: Array, of_scores: Array, part: Block) -> Array:
    """The gradient of a bias with that of a block of scores: summed over dims along which it is one."""
    b, h, q, k = all_.shape
    summed = tuple(dim for dim, size in ((0, b), (1, h), (2, h), (3, q), (4, k)) if size == 1)
    new = lax.reduce_sum(of_scores, summed) if summed else of_scores
    n_queries = 1 if q == 1 else part.sizes.block_queries
    n_keys = 1 if k == 1 else part.sizes.block_keys
    new = lax.reshape(new, (b, h, n_queries, n_keys))
    zero = np.int32(0)
    first = (zero, zero, zero if q == 1 else part.first_query, zero if k == 1 else part.first_key)
    before = lax.dynamic_slice(all_, first, new.shape)
    return lax.dynamic_update_slice(all_, before + new, first)
