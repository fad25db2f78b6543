"""`paged_attention`, and `update_pages`, which writes new keys or values into the cache in place."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.extend import lowers
from torch_pjrt_kernels.attention.choice import RAGGED, SOME_PAGES, Way, first_without
from torch_pjrt_kernels.one_node import one_node
from torch_pjrt_kernels.paged import by_steps, quantized, ragged_tpu, reference

Tensor = torch.Tensor
Optional = torch.Tensor | None


@one_node
def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Optional,
    page_table: Tensor,
    lengths: Tensor,
    *,
    sinks: Optional = None,
    key_scale: Optional = None,
    value_scale: Optional = None,
    window: int | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention of the last positions of sequences to all of them, which lie in pages of a common cache.

    query       of shape (batch, queries, heads, width): of each sequence its last positions. One in decoding;
                more where a prompt, or a part of one, is taken in. A sequence with fewer has anything before.
    key_pages   (pages, page_size, key_heads, width); value_pages: (pages, page_size, key_heads, value_width),
                of the query's dtype or of a narrower one. `heads` is a multiple of `key_heads`. Without
                `value_pages` the first array has both, (pages, page_size, 2 * key_heads, width): behind each
                key head its values. With one query for each sequence JAX's ragged kernel for TPUs takes that.
    page_table  (batch, most_pages), integers: which pages a sequence has, in order.
    lengths     (batch,), integers: how long each sequence is, its queries included.
    sinks       (heads,): a score that takes weight and gives no value.
    key_scale, value_scale   of pages in int8 or float8, what their numbers are multiplied by: floats of shape
                (key_heads,), or (pages, page_size, key_heads).
    window      a query sees no key more than so many positions before it. soft_cap, scale: of the scores.

    The result is (batch, queries, heads, value_width). A query sees no later key. No more pages are read than
    the longest sequence has, a few at a time. It has no gradient. Raises `ValueError` for shapes that do not
    fit.

        update_pages(keys, k, table, lengths); update_pages(values, v, table, lengths)
        y = paged_attention(q, keys, values, table, lengths)
    """
    batch, _, heads, width = query.shape
    joint = value_pages is None
    key_heads = key_pages.shape[2] // (2 if joint else 1)
    fits = (
        key_pages.shape[3] == width
        and (not joint or key_pages.shape[2] % 2 == 0)
        and (value_pages is None or key_pages.shape[:3] == value_pages.shape[:3])
        and key_heads > 0
    )
    if not fits or heads % key_heads or lengths.shape != (batch,) or page_table.shape[0] != batch:
        given = (query, key_pages, value_pages, page_table, lengths)
        shapes = ", ".join("-" if x is None else str(list(x.shape)) for x in given)
        raise ValueError(f"paged_attention takes shapes that fit together; saw {shapes}")
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(
            f"sinks of paged_attention have shape {list(sinks.shape)}; expected {[heads]}"
        )
    quantized.check(key_pages, key_heads, key_scale=key_scale, value_scale=value_scale)
    return torch.ops.torch_pjrt_kernels.paged_attention(
        query, key_pages, value_pages, page_table, lengths, sinks, key_scale, value_scale,
        window, soft_cap, scale,
    )  # fmt: skip


@one_node
def update_pages(
    pages: Tensor,
    new: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    scale: Optional = None,
) -> Tensor:
    """Write the last positions of sequences into their pages, in place: the cache is not copied.

    pages   (pages, page_size, key_heads, width), keys or values. new: (batch, queries, key_heads, width).
    page_table, lengths   as of `paged_attention`: the positions written are the last ones of each length.
    scale   (key_heads,) or (pages, page_size, key_heads), for pages in int8 or float8: what is written is
            divided by it, for int8 rounded and kept within -127 and 127.

    Gives `pages`. Two sequences that would write to one place, or a position before the first, are the
    caller's to avoid.
    """
    n, size = new.shape[1], pages.shape[1]
    positions = lengths.long()[:, None] - n + torch.arange(n, device=lengths.device)
    page = page_table.long().gather(1, positions.div(size, rounding_mode="floor"))
    within = positions.remainder(size)
    new = quantized.narrowed(new, scale, page, within, pages)
    return pages.index_put_((page, within), new)


@torch.library.custom_op("torch_pjrt_kernels::paged_attention", mutates_args=())
def _paged_attention(
    query: Tensor, key_pages: Tensor, value_pages: Optional, page_table: Tensor, lengths: Tensor,
    sinks: Optional, key_scale: Optional, value_scale: Optional,
    window: int | None, soft_cap: float | None, scale: float | None,
) -> Tensor:  # fmt: skip
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    if value_pages is None:
        key_pages, value_pages = key_pages[:, :, ::2], key_pages[:, :, 1::2]
    out = reference.paged_attention(
        query.to(wide), key_pages, value_pages, page_table, lengths, sinks, key_scale, value_scale,
        window=window, soft_cap=soft_cap, scale=scale,
    )  # fmt: skip
    return out.to(query.dtype).contiguous()


@_paged_attention.register_fake
def _(query: Tensor, key_pages: Tensor, value_pages: Optional, *rest: Any) -> Tensor:
    width = (key_pages if value_pages is None else value_pages).shape[3]
    return query.new_empty((*query.shape[:3], width))


def way_of(
    query: Any, key_pages: Any, value_pages: Any, page_table: Any, lengths: Any, sinks: Any,
    key_scale: Any, value_scale: Any, *rest: Any,
) -> Way:  # fmt: skip
    """How a call is computed, by shapes, dtypes and what there is; and what the kernel has against it."""
    against = ragged_tpu.objection_to(query, key_pages, value_pages, sinks, key_scale, value_scale)
    if value_pages is None and (n := query.shape[1]) != 1:
        against = f"{n} queries for each sequence: here it takes one"
    return first_without({RAGGED: against, SOME_PAGES: None})


@lowers(torch.ops.torch_pjrt_kernels.paged_attention.default, static=("soft_cap", "scale"))
def _rule(
    query: Any, key_pages: Any, value_pages: Any, page_table: Any, lengths: Any,
    sinks: Any, key_scale: Any, value_scale: Any, window: int | None, soft_cap: float | None, scale: Any,
) -> Any:  # fmt: skip
    import jax.numpy as jnp

    given = (query, key_pages, value_pages, page_table, lengths)
    if way_of(*given, sinks, key_scale, value_scale).name == RAGGED:
        ends = lengths.astype("int32")
        starts = jnp.arange(len(query) + 1, dtype="int32")
        # The kernel takes no sequence without a position: what it gives of one is put aside.
        found = ragged_tpu.ragged_paged_attention(
            query[:, 0], key_pages, page_table, jnp.maximum(ends, 1), starts,
            window=window, soft_cap=soft_cap, scale=scale,
        )  # fmt: skip
        return jnp.where(ends[:, None, None] > 0, found, 0)[:, None].astype(query.dtype)
    return by_steps.paged_attention(
        query, key_pages, value_pages, page_table, lengths, sinks, key_scale, value_scale,
        window=window, soft_cap=soft_cap, scale=scale,
    )  # fmt: skip
