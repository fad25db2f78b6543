"""Paged attention some pages at a time, on any device: no page behind the longest sequence is read.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (2023); the
softmax runs along as in `attention/blockwise.py`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.plugin import rules
from torch_pjrt_kernels.paged.measured import Serving, chosen

Array = jax.Array
State = tuple[Array, Array, Array]


def paged_attention(
    query: Array, key_pages: Array, value_pages: Array | None, page_table: Array, lengths: Array,
    sinks: Array | None, key_scale: Array | None, value_scale: Array | None, *,
    window: int | None, soft_cap: float | None, scale: Any, positions: int | None = None,
) -> Array:  # fmt: skip
    """As the operator. `positions` of a step: None for those that were measured, or are usual. B batch,
    Q queries, N key heads, G heads that share one, K positions of a step.
    """
    b, n_queries, heads, width = query.shape
    _, size, n, value_width = (key_pages if value_pages is None else value_pages).shape
    n = n // 2 if value_pages is None else n
    wide, g = rules.opmath(query.dtype), heads // n
    most = page_table.shape[1]
    if positions is None:
        shapes = (b * n_queries, b, most * size, heads, n, width, size)
        _, positions = chosen("paged attention", Serving(*shapes, query.dtype.name))
    n_pages = min(max(positions // size, 1), most)
    n_positions = np.int32(n_pages * size)
    n_steps = -(-page_table.shape[1] // n_pages)
    table = lax.convert_element_type(page_table, np.dtype(np.int32))
    table = jnp.pad(table, ((0, 0), (0, n_steps * n_pages - table.shape[1])))
    ends = lax.convert_element_type(lengths, np.dtype(np.int32))
    # B1Q1: the position of each query.
    row = lax.broadcasted_iota(np.dtype(np.int32), (b, 1, g, n_queries, 1), 3)
    row = row + lax.expand_dims(ends, (1, 2, 3, 4)) - np.int32(n_queries)
    q_BNRW = jnp.moveaxis(query.reshape(b, n_queries, n, g, width), 1, 3).reshape(b, n, -1, width)
    factor = lax.convert_element_type(width**-0.5 if scale is None else scale, wide)
    shape = (b, n, g, n_queries)

    def step(number: Array, state: State) -> State:
        greatest, total, sums = state
        pages = lax.dynamic_slice_in_dim(table, number * np.int32(n_pages), n_pages, 1)
        if value_pages is None:
            both = _taken(key_pages, pages)
            k_BPSNW, v_BPSNV = both[:, :, :, ::2], both[:, :, :, 1::2]
        else:
            k_BPSNW, v_BPSNV = _taken(key_pages, pages), _taken(value_pages, pages)
        k_BNKW = _positions(k_BPSNW, key_scale, pages, query.dtype)
        v_BNKV = _positions(v_BPSNV, value_scale, pages, query.dtype)
        scores = _product(q_BNRW, k_BNKW, 3, 3) * factor
        scores = scores.reshape(*shape, -1)
        if soft_cap is not None:
            cap = np.asarray(soft_cap, wide)
            scores = lax.tanh(scores / cap) * cap
        column = lax.broadcasted_iota(np.dtype(np.int32), (1, 1, 1, 1, scores.shape[4]), 4)
        column = column + number * n_positions
        seen = column <= row
        if window is not None:
            seen = seen & (column >= row - np.int32(window))
        scores = jnp.where(seen, scores, -np.inf)
        greater = lax.max(greatest, scores.max(-1, keepdims=True))
        shift = jnp.where(greater == -np.inf, 0, greater)
        numerators, shrink = lax.exp(scores - shift), lax.exp(greatest - shift)
        total = total * shrink + numerators.sum(-1, keepdims=True)
        # Where nobody looks pages hold anything, and a weight of 0 keeps no NaN out of a sum.
        seen_by_some = seen.any((1, 2, 3))[:, None, :, None]
        v_BNKV = jnp.where(seen_by_some, v_BNKV, np.zeros((), v_BNKV.dtype))
        weights = numerators.reshape(b, n, g * n_queries, -1).astype(query.dtype)
        new = _product(weights, v_BNKV, 3, 2)
        return greater, total, sums * shrink + new.reshape(sums.shape)

    state = (
        lax.full((*shape, 1), -np.inf, wide),
        lax.full((*shape, 1), 0, wide),
        lax.full((*shape, value_width), 0, wide),
    )
    first = np.int32(0)
    if window is not None:
        earliest = lax.reduce_min(ends, (0,)) - np.int32(n_queries + window)
        first = lax.div(lax.max(earliest, np.int32(0)), n_positions)
    end = lax.div(lax.reduce_max(ends, (0,)) + (n_positions - np.int32(1)), n_positions)
    end = lax.min(end, np.int32(n_steps))
    greatest, total, sums = lax.fori_loop(first, end, step, state)
    if sinks is not None:
        sunk = sinks.astype(wide).reshape(1, n, g, 1, 1)
        greater = lax.max(greatest, jnp.broadcast_to(sunk, greatest.shape))
        shift = jnp.where(greater == -np.inf, 0, greater)
        shrink = lax.exp(greatest - shift)
        total, sums = total * shrink + lax.exp(sunk - shift), sums * shrink
    out = sums / jnp.where(total == 0, 1, total)
    out = jnp.moveaxis(out, 3, 1).reshape(b, n_queries, heads, value_width)
    return out.astype(query.dtype)


def _taken(x: Array, numbers_BP: Array) -> Array:
    return jnp.take(x, numbers_BP, axis=0, mode="clip")


def _positions(pages: Array, scale: Array | None, numbers_BP: Array, dtype: Any) -> Array:
    """The positions of some pages, BPSNW, one after the other, as what they stand for: BNKW."""
    found = pages.astype(dtype)
    if scale is not None:
        of_pages = scale if scale.ndim == 1 else _taken(scale, numbers_BP)
        found = found * of_pages.astype(dtype)[..., None]
    b, p, s, n, w = found.shape
    return jnp.moveaxis(found.reshape(b, p * s, n, w), 2, 1)


def _product(x: Array, y: Array, x_dim: int, y_dim: int) -> Array:
    dims = (((x_dim,), (y_dim,)), ((0, 1), (0, 1)))
    return lax.dot_general(x, y, dims, preferred_element_type=rules.opmath(x.dtype))
