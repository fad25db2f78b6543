"""What paged attention is, in plain PyTorch, with all pages read: the oracle, and what other devices run."""

from __future__ import annotations

import torch

from torch_pjrt_kernels.as_autocast import in_its_dtypes
from torch_pjrt_kernels.attention import reference
from torch_pjrt_kernels.paged.quantized import widened

Tensor = torch.Tensor


@in_its_dtypes
def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """The names and shapes are those of `torch_pjrt_kernels.paged_attention`; all is in the query's dtype."""
    batch, n_queries = query.shape[:2]

    def whole(pages: Tensor, scales: Tensor | None) -> Tensor:
        """(batch, key_heads, positions, width)."""
        wide = widened(pages, scales, query.dtype)
        return wide[page_table.long().clamp(0, len(pages) - 1)].flatten(1, 2).transpose(1, 2)

    key, value = whole(key_pages, key_scale), whole(value_pages, value_scale)
    positions = torch.arange(key.shape[2], device=query.device)
    rows = lengths[:, None] - n_queries + torch.arange(n_queries, device=query.device)
    seen = positions <= rows[..., None]
    if window is not None:
        seen = seen & (positions >= rows[..., None] - window)
    value = value.where(
        seen.any(1)[:, None, :, None], 0
    )  # where nobody looks there may be no numbers
    out, _ = reference.attention(
        query.transpose(1, 2), key, value, seen.reshape(batch, 1, n_queries, -1),
        None, None, None, sinks, soft_cap=soft_cap, scale=scale,
    )  # fmt: skip
    return out.transpose(1, 2)
