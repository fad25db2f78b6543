"""Attention block by block, on any device: no more scores than those of one block are ever there.

The softmax runs along with the blocks of keys (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018): of each query the greatest score so far, the sum of exponentials, and that of the values
with them. That memory then grows with the length alone is Rabe and Staats, "Self-attention Does Not Need
O(n^2) Memory" (2021); blocks of queries outside, and the logsumexp as all that the backward needs, are Dao,
Fu, Ermon, Rudra, Ré, "FlashAttention" (2022), and Dao, "FlashAttention-2" (2023).

Softmax and sums are in float32, in float64 for float64 inputs. Weights are rounded to the values' dtype
before they are multiplied with values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import rules
from torch_pjrt_kernels.attention.form import (
    MINUS_INFINITY,
    Block,
    Form,
    Ranges,
    Sizes,
    of_heads,
    ranges,
)

Array = jax.Array
State = tuple[Array, ...]


def forward(
    query: Array, key: Array, value: Array, form: Form, sizes: Sizes
) -> tuple[Array, Array]:
    """The output, BHQV of the query's dtype, and the logsumexp of the scores, BHQ of that of the softmax.

    query   BHQW; key, value: BNKW and BNKV. A query that sees nothing gets zeros and a logsumexp of -inf.
    """
    wide = rules.opmath(query.dtype)
    q, k, v = by_blocks(query, sizes), to_blocks(key, sizes), to_blocks(value, sizes)
    form, scale = scale_of_queries(padded(form, sizes), query.dtype)
    heads, size, width = sizes.heads, sizes.block_queries, value.shape[3]
    rows = (*heads, size)

    def of_queries(block: Array, made: State) -> State:
        first = block * np.int32(size)
        q_BNRW = scaled(rows_of(q, first, sizes), scale)

        def step(state: State, first_key: Array, masked: bool) -> State:
            greatest, total, sums = state
            part = Block(form, sizes, first, first_key, masked)
            k_BNKW, v_BNKV = keys_of(k, first_key, sizes), keys_of(v, first_key, sizes)
            scores, _ = part.scores(product(q_BNRW, k_BNKW, 3, 3))
            greater = lax.max(greatest, along(lax.reduce_max, scores))
            shift = finite(greater, form)
            numerators = lax.exp(scores - shift)
            shrink = lax.exp(greatest - shift)
            total = total * shrink + along(lax.reduce_sum, numerators)
            weights = lax.convert_element_type(part.dropped(numerators), value.dtype)
            weighted = product(lax.reshape(weights, products_of(sizes)), v_BNKV, 3, 2)
            return greater, total, sums * shrink + lax.reshape(weighted, sums.shape)

        state = (
            lax.full((*rows, 1), MINUS_INFINITY, wide),
            lax.full((*rows, 1), 0, wide),
            lax.full((*rows, width), 0, wide),
        )
        greatest, total, sums = over_keys(step, state, ranges(form, sizes, block), form, sizes)
        if form.sinks is not None:
            sinks = of_heads(form.sinks, sizes, wide)
            dims = range(sinks.ndim)
            greater = lax.max(greatest, lax.broadcast_in_dim(sinks, greatest.shape, dims))
            shift = lax.select(
                greater == MINUS_INFINITY, lax.full_like(greater, 0), greater
            )  # a sink of -inf takes no weight
            shrink = lax.exp(greatest - shift)
            total, sums = total * shrink + lax.exp(sinks - shift), sums * shrink
            greatest = greater
        logsumexp = greatest + lax.log(total)
        divisor = total if form.dropout_p == 0 else total * np.asarray(1 - form.dropout_p, wide)
        if form.may_see_nothing or form.sinks is not None or form.dropout_p == 1:
            divisor = lax.select(divisor == 0, lax.full_like(divisor, 1), divisor)
        out = lax.convert_element_type(sums / divisor, query.dtype)
        return tuple(
            lax.dynamic_update_slice_in_dim(all_, new, first, -2)
            for all_, new in zip(made, (out, logsumexp), strict=True)
        )

    of_all = (*heads, sizes.padded_queries)
    made = (lax.full((*of_all, width), 0, query.dtype), lax.full((*of_all, 1), 0, wide))
    out, logsumexp = over_queries(of_queries, made, sizes)
    return from_blocks(out, sizes), lax.squeeze(from_blocks(logsumexp, sizes), (3,))


def scale_of_queries(form: Form, dtype: np.dtype) -> tuple[Form, Any]:
    """The form without its scale, and what queries are multiplied by instead: less than the scores are.

    Narrow queries would be rounded once more: scores have the scale then (None).
    """
    if rules.opmath(dtype) != dtype:
        return form, None
    return replace(form, scale=None), form.scale


def scaled(x: Array, scale: Any) -> Array:
    return x if scale is None else x * lax.convert_element_type(scale, x.dtype)


def product(x: Array, y: Array, x_dim: int, y_dim: int) -> Array:
    """Products of matrices, one for each batch and key head, summed as softmax is."""
    dims = (((x_dim,), (y_dim,)), ((0, 1), (0, 1)))
    return lax.dot_general(x, y, dims, preferred_element_type=rules.opmath(x.dtype))


def finite(greatest: Array, form: Form) -> Array:
    """What exponents are shifted by: a query that has seen nothing yet must not be shifted by infinity."""
    if not form.may_see_nothing:
        return greatest
    return lax.select(greatest == MINUS_INFINITY, lax.full_like(greatest, 0), greatest)


def over_queries(of_block: Callable[[Array, State], State], state: State, sizes: Sizes) -> State:
    """`of_block` for each block of queries, one after the other."""
    return lax.fori_loop(np.int32(0), np.int32(sizes.n_query_blocks), of_block, state)


def over_keys(
    step: Callable[[State, Array, bool], State],
    state: State,
    of: Ranges,
    form: Form,
    sizes: Sizes,
) -> State:
    """`step` for each block of keys that some query sees, with its first key, and whether it is masked."""

    def some(state: State, first: Any, end: Any, masked: bool) -> State:
        if isinstance(first, np.generic) and isinstance(end, np.generic) and first == end:
            return state

        def body(block: Array, state: State) -> State:
            return step(state, block * np.int32(sizes.block_keys), masked)

        return lax.fori_loop(first, end, body, state)

    if form.before is not None:
        state = some(state, of.first, of.seen_first, True)
    state = some(state, of.seen_first, of.seen_end, False)
    if form.behind is not None or sizes.padded_keys != sizes.keys:
        state = some(state, of.seen_end, of.end, True)
    return state


def by_blocks(x_BHQW: Array, sizes: Sizes) -> Array:
    """BNGQW, in whole blocks."""
    x = extended(x_BHQW, 2, sizes.padded_queries)
    return lax.reshape(x, (*sizes.heads, sizes.padded_queries, x.shape[3]))


def to_blocks(x_BNKW: Array, sizes: Sizes) -> Array:
    """The same in whole blocks."""
    return extended(x_BNKW, 2, sizes.padded_keys)


def from_blocks(x_BNGQW: Array, sizes: Sizes) -> Array:
    """BHQW, without what blocks are filled up with."""
    n_heads = sizes.key_heads * sizes.sharing
    shape = (sizes.batch, n_heads, sizes.padded_queries, x_BNGQW.shape[-1])
    x = lax.reshape(x_BNGQW, shape)
    return lax.slice_in_dim(x, 0, sizes.queries, axis=2)


def rows_of(x_BNGQW: Array, first: Array, sizes: Sizes) -> Array:
    """A block of queries: BNRW."""
    x = lax.dynamic_slice_in_dim(x_BNGQW, first, sizes.block_queries, -2)
    return lax.reshape(x, (*products_of(sizes)[:3], x.shape[-1]))


def products_of(sizes: Sizes) -> tuple[int, ...]:
    """The shape of the products of a block: BNRK."""
    rows = sizes.sharing * sizes.block_queries
    return (sizes.batch, sizes.key_heads, rows, sizes.block_keys)


def keys_of(x_BNKW: Array, first: Array, sizes: Sizes) -> Array:
    """A block of keys or of values."""
    return lax.dynamic_slice_in_dim(x_BNKW, first, sizes.block_keys, 2)


def padded(form: Form, sizes: Sizes) -> Form:
    """The form with what it has for each query or key in whole blocks, too."""
    bias, segments = form.bias, form.segments
    if bias is not None:
        for dim, size in ((2, sizes.padded_queries), (3, sizes.padded_keys)):
            if bias.shape[dim] != 1:
                bias = extended(bias, dim, size)
    if segments is not None:
        segments = (
            extended(segments[0], 1, sizes.padded_queries),
            extended(segments[1], 1, sizes.padded_keys),
        )
    return replace(form, bias=bias, segments=segments)


def extended(x: Array, dim: int, size: int, filling: Any = 0) -> Array:
    """`x` made longer along a dim."""
    if x.shape[dim] == size:
        return x
    edges = [(0, size - x.shape[dim] if d == dim else 0, 0) for d in range(x.ndim)]
    return lax.pad(x, np.asarray(filling, x.dtype), edges)


def along(fold: Callable[[Array, tuple[int]], Array], scores: Array) -> Array:
    """What is folded over the keys of a block: BNGQ1."""
    last = scores.ndim - 1
    return lax.expand_dims(fold(scores, (last,)), (last,))
