"""Ragged paged attention by JAX's kernel for TPUs, which has keys and values side by side in one array."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from torch_pjrt_kernels.attention.tpu import objection_of_the_chip
from torch_pjrt_kernels.own.rule_of_dims import SplittingRule
from torch_pjrt_kernels.own.sharding import on_chips
from torch_pjrt_kernels.paged.measured import Serving, chosen
from torch_pjrt_kernels.table import Blocks

Array = jax.Array
_LANES = 128
_VMEM_BYTES = 32 * 2**20
# Over several chips each has some key heads, with their values, and the query heads of these.
_RULE = "t (n g) w, pages size (n 2) w, s, s most, starts -> t (n g) w"
_MODULE = "jax.experimental.pallas.ops.tpu.ragged_paged_attention"


@cache
def _is_there() -> bool:
    """Whether this JAX has the kernel."""
    return find_spec(_MODULE) is not None


def objection_to(
    query: Array, pages: Array, values: Array | None, sinks: Any, key_scale: Any, value_scale: Any
) -> str | None:
    """What the kernel, or the chip, has against a call with what it gives; None if it takes it."""
    if values is not None:
        return "keys and values lie in arrays of their own"
    return objection(
        query, pages, has_sinks=sinks is not None,
        has_scales=key_scale is not None or value_scale is not None, width=query.shape[-1],
    )  # fmt: skip


def objection(
    query: Array, pages: Array, *, has_sinks: bool, has_scales: bool, width: int
) -> str | None:
    """As `objection_to`, of a call whose pages have keys and values."""
    if not _is_there():
        return f"JAX {jax.__version__} has none"
    if has_sinks or has_scales:
        return "it takes no sinks, and no scales that are arrays"
    if query.dtype.name != "bfloat16" or pages.dtype.name != "bfloat16":
        return f"it multiplies in bfloat16, and this is {query.dtype.name}, {pages.dtype.name}"
    if width % _LANES:
        return f"heads of width {width}: it takes multiples of {_LANES}"
    if pages.shape[1] % 8:
        return f"pages of {pages.shape[1]} positions: it takes multiples of 8"
    key_heads = pages.shape[2] // 2
    if key_heads not in (1, 2, 4) and key_heads % 8:
        return f"{key_heads} key heads: it takes 1, 2, 4, and multiples of 8"
    return objection_of_the_chip()


def ragged_paged_attention(
    query: Array, pages: Array, page_table: Array, lengths: Array, query_starts: Array,
    *, window: int | None, soft_cap: float | None, scale: float | None, blocks: Blocks | None = None,
) -> Array:  # fmt: skip
    """As the reference; `pages` is (pages, page_size, 2 * key_heads, width): a key head, then its values.

    blocks   how many queries and pages one has; None: what was measured, or is usual.
    """
    kernel = import_module(_MODULE).ragged_paged_attention

    def run(q: Array, kv: Array, ends: Array, table: Array, starts: Array) -> Array:
        n = np.asarray([table.shape[0]], np.int32)
        (tokens, heads, width), (_, size, both, _) = q.shape, kv.shape
        shapes = (tokens, len(table), table.shape[1] * size, heads, both // 2, width, size)
        n_queries, n_pages = blocks or chosen("ragged kernel", Serving(*shapes, q.dtype.name))
        return kernel(
            q, kv, ends, table, starts, jax.numpy.asarray(n),
            sm_scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            sliding_window=None if window is None else window + 1, soft_cap=soft_cap,
            num_kv_pages_per_block=min(n_pages, table.shape[1]),
            num_queries_per_block=min(n_queries, tokens),
            vmem_limit_bytes=_VMEM_BYTES,
        )  # fmt: skip

    whole = [x.astype("int32") for x in (lengths, page_table, query_starts)]
    return on_chips(run, SplittingRule.parsed(_RULE, 5, 1, ("n",)), query, pages, *whole)
