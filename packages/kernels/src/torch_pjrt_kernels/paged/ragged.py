"""`ragged_paged_attention`: prompts and single tokens of many sequences in one call, on a cache in pages."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.extend import lowers
from torch_pjrt_kernels.attention.choice import BLOCKS, RAGGED, Way, first_without
from torch_pjrt_kernels.one_node import one_node
from torch_pjrt_kernels.paged import quantized, ragged_blocks, ragged_reference, ragged_tpu

Tensor = torch.Tensor
Optional = torch.Tensor | None


@one_node
def ragged_paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Optional,
    page_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    *,
    sinks: Optional = None,
    key_scale: Optional = None,
    value_scale: Optional = None,
    window: int | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention of the last positions of sequences to all of them, with any number of positions each.

    query         (tokens, heads, width): the positions of all sequences in a row, those of a prompt, or of a
                  part of one, and single ones of decoding.
    key_pages     (pages, page_size, key_heads, width); value_pages: the same with `value_width`. Without
                  `value_pages` the first array has both, (pages, page_size, 2 * key_heads, width): behind
                  each key head its values. JAX's kernel for TPUs takes that, and only that.
    page_table    (sequences, most_pages), integers: which pages a sequence has, in order.
    lengths       (sequences,), integers: how long each is, its queries included.
    query_starts  (sequences + 1,), integers: where the queries of each begin; the last is where they end.
                  Tokens behind it get zeros.
    sinks         (heads,): a score that takes weight and gives no value.
    key_scale, value_scale   of pages in int8 or float8, what their numbers are multiplied by: floats of shape
                  (key_heads,), or (pages, page_size, key_heads).
    window        a query sees no key more than so many positions before it. soft_cap, scale: of the scores.

    The result is (tokens, heads, value_width). Pages are read where queries see them, a block of queries at a
    time. It has no gradient. Raises `ValueError` for shapes that do not fit.
    """
    n_sequences, (_, heads, width) = len(lengths), query.shape
    joint = value_pages is None
    key_heads = key_pages.shape[2] // (2 if joint else 1)
    fits = (
        key_pages.shape[3] == width
        and (not joint or key_pages.shape[2] % 2 == 0)
        and (value_pages is None or value_pages.shape[:3] == key_pages.shape[:3])
        and key_heads > 0
        and heads % key_heads == 0
        and page_table.shape[0] == n_sequences
        and query_starts.shape == (n_sequences + 1,)
    )
    if not fits:
        given = (query, key_pages, value_pages, page_table, lengths, query_starts)
        shapes = ", ".join("-" if x is None else str(list(x.shape)) for x in given)
        raise ValueError(f"ragged_paged_attention takes shapes that fit together; saw {shapes}")
    quantized.check(key_pages, key_heads, key_scale=key_scale, value_scale=value_scale)
    return torch.ops.torch_pjrt_kernels.ragged_paged_attention(
        query, key_pages, value_pages, page_table, lengths, query_starts, sinks, key_scale,
        value_scale, window, soft_cap, scale,
    )  # fmt: skip


@one_node
def update_ragged_pages(
    pages: Tensor,
    new: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    scale: Optional = None,
) -> Tensor:
    """Write the positions of `ragged_paged_attention`'s queries into pages, in place: no cache is copied.

    pages   (pages, page_size, key_heads, width), keys or values. new: (tokens, key_heads, width).
    page_table, lengths, query_starts   as there. Tokens behind the last start are written nowhere; there
            is at least one before.
    scale   (key_heads,) or (pages, page_size, key_heads), for pages in int8 or float8: what is written is
            divided by it, for int8 rounded and kept within -127 and 127.

    Gives `pages`.
    """
    starts, size = query_starts.long(), pages.shape[1]
    # A token behind the last start writes once more what the last one before writes.
    tokens = torch.arange(len(new), device=new.device).clamp(max=starts[-1] - 1)
    sequence = torch.searchsorted(starts, tokens, right=True) - 1
    place = lengths.long()[sequence] - starts[sequence + 1] + tokens
    page, new = page_table.long()[sequence, place.div(size, rounding_mode="floor")], new[tokens]
    within = place.remainder(size)
    new = quantized.narrowed(new, scale, page, within, pages)
    return pages.index_put_((page, within), new)


@torch.library.custom_op("torch_pjrt_kernels::ragged_paged_attention", mutates_args=())
def _ragged_paged_attention(
    query: Tensor, key_pages: Tensor, value_pages: Optional, page_table: Tensor, lengths: Tensor,
    query_starts: Tensor, sinks: Optional, key_scale: Optional, value_scale: Optional,
    window: int | None, soft_cap: float | None, scale: float | None,
) -> Tensor:  # fmt: skip
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    if value_pages is None:
        key_pages, value_pages = key_pages[:, :, ::2], key_pages[:, :, 1::2]
    out = ragged_reference.ragged_paged_attention(
        query.to(wide), key_pages, value_pages, page_table, lengths, query_starts, sinks, key_scale,
        value_scale, window=window, soft_cap=soft_cap, scale=scale,
    )  # fmt: skip
    return out.to(query.dtype).contiguous()


@_ragged_paged_attention.register_fake
def _(query: Tensor, key_pages: Tensor, value_pages: Optional, *rest: Any) -> Tensor:
    width = (key_pages if value_pages is None else value_pages).shape[3]
    return query.new_empty((*query.shape[:2], width))


def way_of(
    query: Any, key_pages: Any, value_pages: Any, lengths: Any, query_starts: Any, sinks: Any,
    key_scale: Any, value_scale: Any, *rest: Any,
) -> Way:  # fmt: skip
    """How a call is computed, by shapes, dtypes and what there is; and what the kernel has against it."""
    against = ragged_tpu.objection_to(query, key_pages, value_pages, sinks, key_scale, value_scale)
    return first_without({RAGGED: against, BLOCKS: None})


@lowers(torch.ops.torch_pjrt_kernels.ragged_paged_attention.default, static=("soft_cap", "scale"))
def _rule(
    query: Any, key_pages: Any, value_pages: Any, page_table: Any, lengths: Any, query_starts: Any,
    sinks: Any, key_scale: Any, value_scale: Any, window: int | None, soft_cap: float | None,
    scale: float | None,
) -> Any:  # fmt: skip
    form: dict[str, Any] = {"window": window, "soft_cap": soft_cap, "scale": scale}
    if way_of(query, key_pages, value_pages, lengths, query_starts, sinks, key_scale, value_scale,
              window).name == RAGGED:  # fmt: skip
        given = (query, key_pages, page_table, lengths, query_starts)
        return ragged_tpu.ragged_paged_attention(*given, **form)
    if value_pages is None:
        key_pages, value_pages = key_pages[:, :, ::2], key_pages[:, :, 1::2]
    return ragged_blocks.ragged_paged_attention(
        query, key_pages, value_pages, page_table, lengths, query_starts, sinks, key_scale,
        value_scale, **form,
    )  # fmt: skip
