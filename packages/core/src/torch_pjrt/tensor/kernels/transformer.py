"""The operators that `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call in evaluation.

PyTorch has kernels of their own for them on CPU and CUDA. Here they are the operators that they stand for,
recorded one by one: XLA fuses those.

A mask is True where a key may not be seen. Its kind says what its dims are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from torch_pjrt.errors import UnsupportedError
from torch_pjrt.overloads import aten

Optional = torch.Tensor | None

OF_PAIRS, OF_KEYS, MERGED = 0, 1, 2  # query and key; batch and key; batch, head, query and key


def _over_heads(mask: torch.Tensor, kind: int | None, batch: int, keys: int) -> torch.Tensor:
    """The mask with dims batch, head, query and key."""
    mask = mask.to(torch.bool)
    if kind == OF_KEYS:
        return mask.view(batch, 1, 1, keys)
    if kind == OF_PAIRS or mask.dim() == 2:
        return mask.view(1, 1, *mask.shape[-2:])
    return mask


def _split(x: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Heads apart: batch, head, position, width."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def _native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: Optional = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, Optional]:
    """The projected output, and the weights (their mean over heads, if it is asked for)."""
    if query is key is value:
        q, k, v = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        q, k, v = (F.linear(x, weight, bias) for x, weight, bias in parts)
    q, k, v = (_split(x, num_head) for x in (q, k, v))
    if mask is None and not need_weights:
        mixed, weights = F.scaled_dot_product_attention(q, k, v), None
    else:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            hidden = _over_heads(mask, mask_type, len(k), k.shape[2])
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1)  # nan for a query that may look nowhere, as on CPU
        mixed = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
        weights = weights if need_weights else None
    return F.linear(mixed.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def _transformer_encoder_layer_fwd(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: Optional = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Attention and two linear layers, each added to its input; norms before or after."""

    def attended(x: torch.Tensor) -> torch.Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type
        )[0]

    def fed(x: torch.Tensor) -> torch.Tensor:
        wide = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(wide) if use_gelu else F.relu(wide), ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(norm_1(src))
        return x + fed(norm_2(x))
    x = norm_1(src + attended(src))
    return norm_2(x + fed(x))


def _nested_tensor_from_mask_left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """Never: so `nn.TransformerEncoder` goes on with the padded batch, which has a fixed shape."""
    return False


def _nested_tensor_from_mask(
    t: torch.Tensor, mask: torch.Tensor, mask_check: bool = True
) -> torch.Tensor:
    raise UnsupportedError(
        "A padded batch was to become a nested tensor: a pjrt tensor has one shape.",
        hint="make nn.TransformerEncoder with enable_nested_tensor=False",
    )


KERNELS: dict[Any, Any] = {
    aten._native_multi_head_attention.default: _native_multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: _transformer_encoder_layer_fwd,
    aten._nested_tensor_from_mask_left_aligned.default: _nested_tensor_from_mask_left_aligned,
    aten._nested_tensor_from_mask.default: _nested_tensor_from_mask,
}
