"""Ragged paged attention in blocks, on any device: pages are read where a block of queries sees them.

Kwon et al. (2023), as in `by_steps.py`; all sequences' queries in one row, prompts and single tokens, are
Agrawal et al., "Sarathi-Serve" (2024). The keys of sequence i have the numbers from i times the most that a
table holds.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.plugin import rules
from torch_pjrt_kernels.attention.form import INT32, Sizes
from torch_pjrt_kernels.flex.block import Mods
from torch_pjrt_kernels.flex.forward import forward
from torch_pjrt_kernels.flex.varlen import (
    heads_first,
    intervals,
    seen_by_intervals,
    table_of_intervals,
)
from torch_pjrt_kernels.paged.measured import Serving, chosen
from torch_pjrt_kernels.table import Blocks

Array = jax.Array


def ragged_paged_attention(
    query: Array, key_pages: Array, value_pages: Array, page_table: Array, lengths: Array,
    query_starts: Array, sinks: Array | None, key_scale: Array | None, value_scale: Array | None,
    *, window: int | None, soft_cap: float | None, scale: Any, blocks: Blocks | None = None,
) -> Array:  # fmt: skip
    """As the reference. `blocks`: queries and positions of one; None: what was measured, or is usual."""
    tokens, heads, width = query.shape
    _, size, key_heads, value_width = value_pages.shape
    n_sequences, most = page_table.shape
    table = lax.convert_element_type(page_table, INT32)
    # A block of keys is of one sequence: its table is as long as whole blocks need.
    shapes = (tokens, n_sequences, most * size, heads, key_heads, width, size)
    queries, keys = blocks or chosen("ragged attention", Serving(*shapes, query.dtype.name))
    n_each = min(max(keys // size, 1), most)
    table = jnp.pad(table, ((0, 0), (0, -most % n_each)))
    most = table.shape[1]
    sizes = Sizes(
        1, key_heads, heads // key_heads, tokens, n_sequences * most * size,
        min(queries, tokens), n_each * size,
    )  # fmt: skip
    starts = lax.iota(INT32, n_sequences + 1) * np.int32(most * size)
    before = -1 if window is None else window
    shown = intervals(tokens, query_starts, starts, lengths, True, (before, 0))
    row = table.reshape(-1)

    def keys_at(first: Array) -> tuple[Array, Array]:
        at = lax.div(first, np.int32(size))
        pages = lax.dynamic_slice_in_dim(row, at, n_each, 0)
        return (
            _positions(key_pages, key_scale, pages, query.dtype),
            _positions(value_pages, value_scale, pages, query.dtype),
        )

    mods = seen_by_intervals(shown)
    if soft_cap is not None:
        cap = float(soft_cap)
        mods = Mods(score=lambda scores, *unused: lax.tanh(scores / cap) * cap, mask=mods.mask)
    # What keys and values in a row would look like, of which there are none.
    like_key, like_value = (
        jnp.broadcast_to(jnp.zeros((), query.dtype), (1, key_heads, 1, w))
        for w in (width, value_width)
    )
    out, logsumexp, _ = forward(
        heads_first(query), like_key, like_value, width**-0.5 if scale is None else scale, mods,
        table_of_intervals(shown, sizes), sizes, jnp.zeros((1,), INT32), keys_at=keys_at,
        apart=True,
    )  # fmt: skip
    if sinks is not None:
        # A score that no key has: a part of the weight goes to it.
        wide = rules.opmath(query.dtype)
        sunk = sinks.astype(wide)[None, :, None]
        nothing = (logsumexp == -np.inf) & (sunk == -np.inf)
        share = jax.nn.sigmoid(logsumexp - jnp.where(nothing, 0, sunk))
        out = (out.astype(wide) * share[..., None]).astype(query.dtype)
    return jnp.swapaxes(out[0], 0, 1)


def _positions(pages: Array, scale: Array | None, numbers: Array, dtype: Any) -> Array:
    """The positions of some pages, one after the other, as what they stand for: 1NKW."""
    found = jnp.take(pages, numbers, axis=0, mode="clip").astype(dtype)
    if scale is not None:
        of_pages = scale if scale.ndim == 1 else jnp.take(scale, numbers, axis=0, mode="clip")
        found = found * of_pages.astype(dtype)[..., None]
    found = found.reshape(-1, *found.shape[2:])
    return jnp.swapaxes(found, 0, 1)[None]
