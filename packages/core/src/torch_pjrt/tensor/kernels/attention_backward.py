"""The backward of attention, where it is differentiated itself.

PyTorch has no derivative of the one operator that attention's backward is. Where a graph of the backward is
wanted (`create_graph=True`, `torch.func`), the operator is in it with simpler ones as its derivative, which
are differentiated as often as one likes: they make all scores, and nobody who takes no second derivative has
them. The kernel is registered before the first such backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from torch_pjrt.overloads import aten

Tensor = torch.Tensor
Optional = torch.Tensor | None

_ONE_OPERATOR = aten._scaled_dot_product_fused_attention_overrideable_backward.default
_ALL = (True, True, True, False)


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Optional,
    grad_input_mask: Sequence[bool],
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Optional,
    cum_seq_k: Optional,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Optional, ...]:
    """The gradients of query, key, value and, if there is one, of the bias: by the one operator."""
    tensors = (grad_out, query, key, value, attn_bias)
    rest = (out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal)
    call = _Call((tuple(grad_input_mask), *rest, philox_seed, philox_offset), scale)
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in tensors):
        return call.by_one_operator(*tensors)
    differentiable: Any = _Differentiable
    with enable_single_level_autograd_function():
        return differentiable.apply(call, *tensors)


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """The arguments of the operator behind its first five, which it has derivatives in."""

    rest: tuple[Any, ...]
    scale: float | None

    def by_one_operator(self, *tensors: Optional) -> tuple[Optional, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _ONE_OPERATOR(*tensors, *self.rest, scale=self.scale)


class _Differentiable(_SingleLevelFunction):
    """The one operator, at the transform of `torch.func` that is at work, or at none."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Optional) -> tuple[Optional, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.call = call
        ctx.save_for_backward(*tensors)
        with torch.enable_grad():  # for transforms that this one is in
            return call.by_one_operator(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Optional, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *given, bias = ctx.saved_tensors
        has_gradient = bias is not None and bias.is_floating_point()

        def composed(*tensors: Tensor) -> tuple[Tensor, ...]:
            grad_out, query, key, value, *biases = tensors
            bias_of_call = biases[0] if has_gradient else bias
            found = _by_simpler_operators(ctx.call, grad_out, query, key, value, bias_of_call)
            return tuple(x for x in found[: 4 if has_gradient else 3] if x is not None)

        wanted = (*given, bias) if has_gradient else tuple(given)
        pulled: Any = torch.func.vjp(composed, *wanted)
        found = pulled[1](gradients[: 4 if has_gradient else 3])
        return None, *found, *((None,) if len(found) == 4 else ())


def _by_simpler_operators(
    call: _Call, grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Optional
) -> tuple[Optional, ...]:
    """What the one operator gives, from all scores; the weights are computed again, in float32 at least."""
    _, _, logsumexp, _, _, _, _, dropout_p, is_causal, philox_seed, philox_offset = call.rest
    scale = call.scale
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    n_sharing = query.shape[-3] // key.shape[-3]
    grad, q = _wide(grad_out), _wide(query)
    k, v = (_spread(_wide(x), n_sharing) for x in (key, value))
    weights = torch._safe_softmax(_scores(q, k, attn_bias, is_causal, factor), -1)  # pyright: ignore[reportPrivateImportUsage]
    kept = None
    if dropout_p:
        draw = (dropout_p, is_causal, philox_seed, philox_offset)
        kept = _kept(q, k, attn_bias, logsumexp, *draw, factor)
    grad_weights = _dropped(grad @ v.mT, kept)
    along = (grad_weights * weights).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - along)
    grad_query = grad_scores @ k * factor
    grad_key = _gathered((q.mT @ grad_scores * factor).mT, n_sharing)
    grad_value = _gathered(_dropped(weights, kept).mT @ grad, n_sharing)
    grad_bias = None
    if attn_bias is not None and attn_bias.dtype == torch.bool:
        grad_bias = torch.zeros_like(attn_bias)
    elif attn_bias is not None:
        grad_bias = grad_scores.sum_to_size(attn_bias.shape).to(attn_bias.dtype)
    return (
        grad_query.to(query.dtype),
        grad_key.to(key.dtype),
        grad_value.to(value.dtype),
        grad_bias,
    )


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _spread(x: Tensor, n_sharing: int) -> Tensor:
    """A key head for each query head."""
    return x if n_sharing == 1 else x.repeat_interleave(n_sharing, -3)


def _gathered(x: Tensor, n_sharing: int) -> Tensor:
    """Sums over the query heads that share a key head."""
    return x if n_sharing == 1 else x.unflatten(-3, (-1, n_sharing)).sum(-3)


def _scores(q: Tensor, k: Tensor, bias: Optional, is_causal: bool, factor: float) -> Tensor:
    scores = q @ k.mT * factor
    if bias is not None and bias.dtype == torch.bool:
        scores = scores.masked_fill(~bias, -math.inf)
    elif bias is not None:
        scores = scores + bias
    if is_causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(unseen, -math.inf)
    return scores


@torch.no_grad()
def _kept(
    q: Tensor,
    k: Tensor,
    bias: Optional,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    seed: Tensor,
    offset: Tensor,
    factor: float,
) -> Tensor:
    """What the weights that the forward has kept are multiplied by: 0 or 1 / (1 - p).

    The one operator draws them again from the seed. The gradient of values is the weights themselves where
    that of the output is the identity.
    """
    n = q.shape[-2]
    identity = torch.eye(n, dtype=q.dtype, device=q.device).expand(*q.shape[:-1], n)
    values = q.new_zeros(*k.shape[:-1], n)
    weights = _ONE_OPERATOR(
        identity, q, k, values, bias, _ALL, identity, logsumexp, None, None, n, k.shape[-2],
        dropout_p, is_causal, seed, offset, scale=factor,
    )[2].mT  # fmt: skip
    return (weights != 0) * (1 / (1 - dropout_p) if dropout_p < 1 else 0.0)


def _dropped(x: Tensor, kept: Optional) -> Tensor:
    return x if kept is None else x * kept


ABOVE_AUTOGRAD: dict[Any, Any] = {_ONE_OPERATOR: attention_backward}
