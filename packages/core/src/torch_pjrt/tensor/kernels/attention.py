"""`scaled_dot_product_attention` as one recorded operator, with its backward, so that kernels can replace it.

PyTorch chooses between implementations in C++, by a table that a Python backend has no entry in, and would
take its composition of simpler operators. So the choice is made here, before autograd: below it stands
the operator that PyTorch leaves to other devices, which has a derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._functorch import TransformType
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend

from torch_pjrt.client.client import client
from torch_pjrt.overloads import aten

Optional = torch.Tensor | None

_ONE_OPERATOR = aten._scaled_dot_product_fused_attention_overrideable.default


def _allows_rule() -> bool:
    """Whether `sdpa_kernel` allows another backend than plain operators.

    Flash, memory-efficient and cuDNN's attention are other devices' names for what the rule is here.
    """
    return (
        torch._C._get_overrideable_sdp_enabled()
        or torch._C._get_flash_sdp_enabled()
        or torch._C._get_mem_efficient_sdp_enabled()
        or torch._C._get_cudnn_sdp_enabled()
    )


def _has_rule() -> bool:
    """Whether the operator has a rule, and `sdpa_kernel` allows it."""
    return _allows_rule() and _ONE_OPERATOR in client().lowerings


def _check_any_is_allowed() -> None:
    """Raise what PyTorch's devices raise where every backend is forbidden."""
    if not _allows_rule() and not torch._C._get_math_sdp_enabled():
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. "
            "This is likely due to turning off both the math kernel and the fused kernels."
        )


def is_differentiated_forward() -> bool:
    """Whether tangents may be carried along (`forward_ad`, `torch.func.jvp`): PyTorch has no rule there."""
    return forward_ad._current_level >= 0


def _draws_for_each() -> bool:
    """Within a `torch.vmap` that a transform such as `torch.func.grad` is in.

    What is dropped for each of its batch is as its `randomness` says, which simpler operators follow.
    """
    stack = torch._C._functorch.get_interpreter_stack() or ()  # pyright: ignore[reportAttributeAccessIssue]
    return any(each.key() == TransformType.Vmap for each in stack)


def _fits(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Optional,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Whether the operator's rule takes the call; PyTorch's composition takes or refuses others."""
    if not 0 <= dropout_p < 1:  # of 1, which nothing makes up for, the composition makes zeros
        return False
    if not query.dim() == key.dim() == value.dim() == 4 or not query.is_floating_point():
        return False
    if not query.dtype == key.dtype == value.dtype:
        return False
    batch, heads, queries, width = query.shape
    key_heads, keys = key.shape[1:3]
    if key.shape != (batch, key_heads, keys, width):
        return False
    if value.shape[:3] != key.shape[:3] or 0 in (*query.shape, *key.shape, *value.shape):
        return False
    if heads != key_heads and not (enable_gqa and heads % key_heads == 0):
        return False
    if mask is None:
        return True
    if is_causal or mask.dim() > 4 or mask.dtype not in (torch.bool, query.dtype):
        return False
    wanted = (batch, heads, queries, keys)[4 - mask.dim() :]
    return all(n in (1, w) for n, w in zip(mask.shape, wanted, strict=True))


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """One operator where its rule takes the call and nobody has forbidden it (`sdpa_kernel`)."""
    _check_any_is_allowed()
    is_composed = is_differentiated_forward() or (dropout_p > 0 and _draws_for_each())
    if _has_rule() and not is_composed:
        given = query, key, value, attn_mask
        if query.dim() != 4:
            given = _of_four_dims(*given) or given
        if _fits(*given, dropout_p, is_causal, enable_gqa):
            out = _ONE_OPERATOR(*given, dropout_p, is_causal, scale=scale)[0]
            if query.dim() != 4:
                out = out.reshape(*query.shape[:-1], value.shape[-1])
            return out.contiguous() if _is_composed_on_cpu(query, attn_mask) else out
    return aten.scaled_dot_product_attention.default.decompose(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _is_composed_on_cpu(query: torch.Tensor, mask: Optional) -> bool:
    """Whether its flash kernel refuses for what the operator does not see; the result is contiguous then."""
    wants_mask = mask is not None and mask.requires_grad and torch.is_grad_enabled()
    return query.dim() != 4 or wants_mask


def _of_four_dims(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Optional] | None:
    """The call with one batch dim in the place of several, or of none; None for shapes that broadcast.

    Of three dims the first is that of the batch: so the result is contiguous, as the CPU's is. Where groups
    of queries share a key, it is that of heads.
    """
    batch, dims = query.shape[:-3], query.dim()
    if dims < 2 or not key.dim() == value.dim() == dims or 0 in query.shape:
        return None
    if key.shape[:-3] != batch or value.shape[:-3] != batch:
        return None

    if mask is not None and (mask.dim() > dims or mask.dim() < 2):
        return None
    if dims == 3 and query.shape[0] == key.shape[0] == value.shape[0]:
        of_batch = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        return query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), of_batch

    def four(x: torch.Tensor) -> torch.Tensor:
        return x.reshape((1,) * (4 - dims) + x.shape) if dims < 4 else x.flatten(0, dims - 4)

    if mask is not None and mask.dim() > 3:
        if any(n not in (1, w) for n, w in zip(mask.shape[-4::-1], batch[::-1], strict=False)):
            return None
        own = mask.shape[-3:]
        is_one = all(n == 1 for n in mask.shape[:-3])
        mask = mask.reshape(1, *own) if is_one else mask.expand(*batch, *own).reshape(-1, *own)
    return four(query), four(key), four(value), mask


def _fused_sdp_choice(*args: Any, **kwargs: Any) -> int:
    _check_any_is_allowed()
    return int((SDPBackend.OVERRIDEABLE if _has_rule() else SDPBackend.MATH).value)


KERNELS: dict[Any, Any] = {
    aten._fused_sdp_choice.default: _fused_sdp_choice,
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
}

# Before autograd: what they call is differentiated.
ABOVE_AUTOGRAD: dict[Any, Any] = {
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
}
