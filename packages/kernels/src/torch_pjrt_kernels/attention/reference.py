"""What attention is, in plain PyTorch: the oracle of tests, and how tensors of other devices are computed."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_pjrt_kernels.as_autocast import in_its_dtypes

Tensor = torch.Tensor


def weights(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    query_segments: Tensor | None = None,
    key_segments: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    is_causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    first_position: int = 0,
    soft_cap: float | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The weights of all keys for each query, and the logsumexp of the scores.

    query     of shape (batch, heads, queries, width). key: (batch, key_heads, keys, width).

    The weights have shape (batch, heads, queries, keys), the logsumexp lacks the last dim. All is in the
    dtype of the query. The names say what `flash_attention` says of them.
    """
    n_sharing = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(n_sharing, 1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    rows = torch.arange(query.shape[2], device=query.device)[:, None] + first_position
    columns = torch.arange(key.shape[2], device=query.device)
    if slopes is not None:
        scores = scores - slopes.to(scores.dtype)[:, None, None] * (rows - columns).abs()
    seen = torch.ones(scores.shape[2:], dtype=torch.bool, device=query.device)
    if is_causal:
        seen = seen & (columns <= rows)
    left, right = window
    if left is not None:
        seen = seen & (columns >= rows - left)
    if right is not None:
        seen = seen & (columns <= rows + right)
    if query_segments is not None and key_segments is not None:
        seen = seen & (query_segments[:, None, :, None] == key_segments[:, None, None, :])
    if bias is not None and bias.dtype == torch.bool:
        seen = seen & bias
    elif bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~seen, -math.inf)
    all_ = scores
    if sinks is not None:
        of_sinks = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[1:3], 1)
        all_ = torch.cat([scores, of_sinks.expand(scores.shape[0], *of_sinks.shape)], -1)
    found = torch._safe_softmax(all_, -1)[..., : scores.shape[-1]]  # pyright: ignore[reportPrivateImportUsage]
    return found, all_.logsumexp(-1)


@in_its_dtypes
def attention(
    query: Tensor, key: Tensor, value: Tensor, *form: Tensor | None, kept: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False,
    window: tuple[int | None, int | None] = (None, None), first_position: int = 0,
    soft_cap: float | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output, of shape (batch, heads, queries, value_width), and the logsumexp of the scores.

    form   bias, slopes, segments of queries and of keys, sinks, as `weights` takes them.
    kept   which weights are not dropped, of their shape.
    """
    found, logsumexp = weights(
        query, key, *form, is_causal=is_causal, window=window,
        first_position=first_position, soft_cap=soft_cap, scale=scale,
    )  # fmt: skip
    if kept is not None:
        found = found * kept / (1 - dropout_p)
    return found @ value.repeat_interleave(query.shape[1] // value.shape[1], 1), logsumexp


@in_its_dtypes
def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *form: Tensor | None,
    kept: Tensor | None = None, dropout_p: float = 0.0, soft_cap: float | None = None,
    scale: float | None = None, **rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of query, key, value, bias and sinks, by the formulas; zeros of those that are not there.

    The arguments are those of `attention`.
    """
    n_sharing = query.shape[1] // key.shape[1]
    k, v = (x.repeat_interleave(n_sharing, 1) for x in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    found, logsumexp = weights(query, key, *form, soft_cap=soft_cap, scale=scale, **rest)
    share = torch.ones_like(found) if kept is None else kept / (1 - dropout_p)
    along = (grad * ((found * share) @ v)).sum(-1, keepdim=True)
    of_scores = found * ((grad @ v.mT) * share - along)
    bias, sinks = form[0] if form else None, form[4] if form else None
    of_bias = of_sinks = query.new_zeros(())
    if bias is not None:
        of_bias = of_scores.sum_to_size(bias.shape)
    if sinks is not None:
        sunk = (sinks.to(query.dtype)[:, None] - logsumexp).exp()
        of_sinks = -(sunk * along.squeeze(-1)).sum((0, 2))
    if soft_cap is not None:
        bent = torch.tanh(query @ k.mT * factor / soft_cap)
        of_scores = of_scores * (1 - bent * bent)

    def gathered(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, n_sharing)).sum(2)

    of_key = gathered(of_scores.mT @ query) * factor
    of_value = gathered((found * share).mT @ grad)
    return of_scores @ k * factor, of_key, of_value, of_bias, of_sinks
