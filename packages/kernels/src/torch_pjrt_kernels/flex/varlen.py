"""PyTorch's `varlen_attn` on the device: sequences of any lengths, one behind the other in a row.

What a query sees is an interval of keys. So blocks that no interval reaches are not computed: the work is
that of each sequence by itself.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import after_import, lowers
from torch_pjrt.plugin import client, rules
from torch_pjrt_kernels.attention.choice import Problem, sizes_of
from torch_pjrt_kernels.attention.form import INT32, Sizes
from torch_pjrt_kernels.flex.backward import Given, backward
from torch_pjrt_kernels.flex.block import Mods
from torch_pjrt_kernels.flex.forward import forward
from torch_pjrt_kernels.flex.visits import HIDDEN, MASKED, SEEN, Table

Array = jax.Array
Tensor = torch.Tensor
_MODULE = "torch.nn.attention.varlen"


def install() -> None:
    """Have rules for it from when PyTorch's module is imported."""
    after_import(_MODULE, _register)


def _register(module: ModuleType) -> None:
    ops = torch.ops.torch_attn
    lowers(ops._varlen_attn.default, static=("scale",))(varlen_attn)
    lowers(ops._varlen_attn_backward.default, static=("scale",))(varlen_attn_backward)
    if hasattr(ops, "_varlen_attn_out"):
        torch.library.impl("torch_attn::_varlen_attn_out", "PrivateUse1", _into)


def _into(out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    found, logsumexp, _ = torch.ops.torch_attn._varlen_attn(*args, **kwargs)
    out.copy_(found)
    return logsumexp


def varlen_attn(
    query: Array, key: Array, value: Array, cu_seq_q: Array, cu_seq_k: Array | None, max_q: int,
    max_k: int, is_causal: bool = False, scale: float | None = None, window_size: Any = None,
    enable_gqa: bool = False, seqused_k: Array | None = None, block_table: Array | None = None,
    num_splits: int | None = None, backend: int = 0,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The output, (T, H, V), the logsumexp of the scores, (H, T) in float32, and zeros: nothing is dropped.

    query     (T, H, W); key, value: (S, N, W) and (S, N, V), or pages (pages, size, N, W or V) of which
              `block_table` has a row for each sequence.
    cu_seq_q, cu_seq_k   (sequences + 1,): where each begins, and the last ends.
    window_size, is_causal   the last query of a sequence is at the place of its last key, as in
              FlashAttention since 2.1.
    num_splits, backend   say how CUDA's kernels compute it.
    """
    if block_table is not None:
        if seqused_k is None:
            raise LoweringError(
                "`block_table` says which pages are used: give `seqused_k` with it."
            )
        key, value, cu_seq_k = _paged(key, value, block_table)
    starts_k = cu_seq_q if cu_seq_k is None else cu_seq_k
    shown = intervals(query.shape[0], cu_seq_q, starts_k, seqused_k, is_causal, window_size)
    in_pages = block_table is not None  # which hold what other requests left there
    out, logsumexp = _forward(query, key, value, _scale(query, scale), shown, apart=in_pages)
    zeros = jnp.zeros((2,), np.dtype(np.uint64))
    return out, logsumexp.astype(np.dtype(np.float32)), zeros


def varlen_attn_backward(
    grad_out: Array, query: Array, key: Array, value: Array, out: Array, lse: Array,
    cu_seq_q: Array, cu_seq_k: Array, max_q: int, max_k: int, is_causal: bool, rng_state: Array,
    scale: float | None = None, window_size: Any = None, backend: int = 0,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The gradients of query, key and value. The logsumexp has 32 bits: for queries of 64 it is made anew."""
    shown = intervals(query.shape[0], cu_seq_q, cu_seq_k, None, is_causal, window_size)
    factor = _scale(query, scale)
    if rules.opmath(query.dtype) != lse.dtype:
        _, lse = _forward(query, key, value, factor, shown)
    sizes = _sizes(query, key, value)
    q, k, v, o, g = (heads_first(x) for x in (query, key, value, out, grad_out))
    given = Given(q, k, v, o, lse[None], g, None)
    table, mods = table_of_intervals(shown, sizes), seen_by_intervals(shown)
    found = backward(given, factor, mods, table, sizes, jnp.zeros((1,), INT32))
    of_query, of_key, of_value = (jnp.swapaxes(x[0], 0, 1) for x in found)
    return of_query, of_key, of_value


def _forward(
    query: Array, key: Array, value: Array, scale: Any, shown: tuple[Array, Array],
    *, apart: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    sizes = _sizes(query, key, value)
    q, k, v = (heads_first(x) for x in (query, key, value))
    table, batch = table_of_intervals(shown, sizes), jnp.zeros((1,), INT32)
    mods = seen_by_intervals(shown)
    out, logsumexp, _ = forward(q, k, v, scale, mods, table, sizes, batch, apart=apart)
    return jnp.swapaxes(out[0], 0, 1), logsumexp[0]


def intervals(
    n: int, starts_q: Array, starts_k: Array, used: Array | None, is_causal: bool, window: Any
) -> tuple[Array, Array]:
    """The first key that each of `n` queries sees, and the one behind the last."""
    starts_q, starts_k = (x.astype(INT32) for x in (starts_q, starts_k))
    before, behind = (-1, -1) if window is None else tuple(int(x) for x in window)
    behind = 0 if is_causal else behind
    rows = lax.iota(INT32, n)
    found = jnp.searchsorted(starts_q, rows, side="right").astype(INT32) - np.int32(1)
    at = jnp.clip(found, 0, starts_q.shape[0] - 2)
    first_k = starts_k[at]
    n_keys = starts_k[at + np.int32(1)] - first_k if used is None else used.astype(INT32)[at]
    n_queries = starts_q[at + np.int32(1)] - starts_q[at]
    place = first_k + rows - starts_q[at] + n_keys - n_queries
    first, end = first_k, first_k + n_keys
    if before >= 0:
        first = lax.max(first, place - np.int32(before))
    if behind >= 0:
        end = lax.min(end, place + np.int32(behind + 1))
    nowhere = (found != at) | (end <= first)
    return jnp.where(nowhere, np.int32(0), first), jnp.where(nowhere, np.int32(0), end)


def seen_by_intervals(shown: tuple[Array, Array]) -> Mods:
    """Queries see the keys of their intervals."""

    def mask(batch: Array, heads: Array, queries: Array, keys: Array) -> Array:
        first, end = (x[queries][:, None] for x in shown)
        return ((keys >= first) & (keys < end))[None, None]

    return Mods(mask=mask)


def table_of_intervals(shown: tuple[Array, Array], sizes: Sizes) -> Table:
    """The states of blocks as they are computed: hidden where no query's interval reaches a block of keys.

    Queries of one block may be of sequences whose keys lie far from one another: what is between is hidden.
    """
    first, end = shown
    more = sizes.padded_queries - sizes.queries
    empty = end == 0
    far = np.int32(np.iinfo(np.int32).max)
    n_rows, n_keys, size = sizes.n_query_blocks, sizes.n_key_blocks, np.int32(sizes.block_keys)
    # Each query begins to look at one block, and stops behind another: sums of that say how many look.
    of_row = lax.div(lax.iota(INT32, sizes.queries), np.int32(sizes.block_queries))
    begins = jnp.where(empty, np.int32(0), lax.div(first, size))
    stops = jnp.where(empty, np.int32(0), lax.div(end + (size - np.int32(1)), size))
    looking = jnp.zeros((n_rows, n_keys + 1), INT32)
    looking = looking.at[of_row, begins].add(np.int32(1)).at[of_row, stops].add(np.int32(-1))
    some = lax.cumsum(looking, 1)[:, :n_keys] > 0

    def of_blocks(x: Array, filling: np.int32) -> Array:
        return jnp.pad(x, (0, more), constant_values=filling).reshape(n_rows, sizes.block_queries)

    # A block that all see is within the interval of each. Of what fills up a block nobody asks.
    last_first = of_blocks(jnp.where(empty, far, first), np.int32(0)).max(1)[:, None]
    first_end = of_blocks(end, far).min(1)[:, None]
    keys = lax.iota(INT32, n_keys) * size
    whole = (last_first <= keys) & (keys + size <= first_end)
    masked = jnp.where(some, np.int32(MASKED), np.int32(HIDDEN))
    states = jnp.where(some & whole, np.int32(SEEN), masked)
    return Table(states[None, None], (sizes.block_queries, sizes.block_keys))


def _paged(key: Array, value: Array, table: Array) -> tuple[Array, Array, Array]:
    """The keys and values of all pages of each sequence in a row, and where each sequence begins there."""
    found = [
        jnp.take(x, table.astype(INT32), axis=0, mode="clip").reshape(-1, *x.shape[2:])
        for x in (key, value)
    ]  # of pages that are not used, too
    n, most = table.shape
    starts = lax.iota(INT32, n + 1) * np.int32(most * key.shape[1])
    return found[0], found[1], starts


def heads_first(x: Array) -> Array:
    """(T, H, W) as one batch: BHTW."""
    return jnp.swapaxes(x, 0, 1)[None]


def _scale(query: Array, scale: float | None) -> Any:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _sizes(query: Array, key: Array, value: Array) -> Sizes:
    t, h, w = query.shape
    s, n, v = value.shape
    problem = Problem(1, h, n, t, s, w, v, query.dtype.name)
    return sizes_of(problem, on_cpu=client().device.name == "CPU")
