"""What ragged paged attention is, in plain PyTorch, each query with all pages: the oracle."""

from __future__ import annotations

import torch

from torch_pjrt_kernels.as_autocast import in_its_dtypes
from torch_pjrt_kernels.attention import reference
from torch_pjrt_kernels.paged.quantized import widened

Tensor = torch.Tensor


@in_its_dtypes
def ragged_paged_attention(
    query: Tensor, key_pages: Tensor, value_pages: Tensor, page_table: Tensor, lengths: Tensor,
    query_starts: Tensor, sinks: Tensor | None = None, key_scale: Tensor | None = None,
    value_scale: Tensor | None = None, *, window: int | None = None, soft_cap: float | None = None,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Names and shapes are those of `torch_pjrt_kernels.ragged_paged_attention`, all in the query's dtype."""
    tokens = torch.arange(len(query), device=query.device)
    starts, ends = query_starts.long(), lengths.long()
    found = torch.searchsorted(starts, tokens, right=True) - 1
    sequence = found.clamp(0, len(ends) - 1)
    place = ends[sequence] - starts[sequence + 1] + tokens

    def of_tokens(pages: Tensor, scales: Tensor | None) -> Tensor:
        """(tokens, key_heads, positions, width)."""
        whole = widened(pages, scales, query.dtype)
        return (
            whole[page_table.long().clamp(0, len(pages) - 1)]
            .flatten(1, 2)[sequence]
            .transpose(1, 2)
        )

    key, value = of_tokens(key_pages, key_scale), of_tokens(value_pages, value_scale)
    positions = torch.arange(key.shape[2], device=query.device)
    seen = (positions <= place[:, None]) & (found == sequence)[:, None]
    if window is not None:
        seen = seen & (positions >= place[:, None] - window)
    value = value.where(seen[:, None, :, None], 0)  # where nobody looks there may be no numbers
    out, _ = reference.attention(
        query[:, :, None], key, value, seen[:, None, None], None, None, None, sinks,
        soft_cap=soft_cap, scale=scale,
    )  # fmt: skip
    return out[:, :, 0]
