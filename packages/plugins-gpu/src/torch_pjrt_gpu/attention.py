"""Attention by cuDNN's fused kernel, where it takes the call; the core's rule elsewhere.

The kernel never writes the scores out: memory grows with the sequence and not with its square. It takes
float16 and bfloat16, heads of a multiple of 8 up to 128, and here neither a mask of the caller's nor dropout.
The backward's kernel is given what the forward's kernel left: the rule calls that again, with the same
arguments, so that in one program with the forward the two calls are one.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import LoweringTable, aten, client, rules
from torch_pjrt_gpu.cudnn import answer_for_the_card_at_work

Array = jax.Array

table = LoweringTable("gpu")

_HALVES = (np.dtype(np.float16), jax.dtypes.canonicalize_dtype("bfloat16"))
_WIDEST_HEAD = 128
_LEAST_CAPABILITY = 8.0  # cuDNN's


def objection(call: rules.Attention | rules.AttentionBackward) -> str | None:
    """What the fused kernel has against a call, from shapes and dtypes alone; None if it takes it."""
    query, key, value = call.query, call.key, call.value
    if query.ndim != 4:
        return f"{query.ndim} dims"
    if query.dtype not in _HALVES or {key.dtype, value.dtype} != {query.dtype}:
        return f"dtypes {query.dtype}, {key.dtype}, {value.dtype}"
    if call.attn_bias is not None:
        return "a mask"
    if call.dropout_p:
        return "dropout"
    width = query.shape[3]
    if width % 8 or width > _WIDEST_HEAD or value.shape[3] != width:
        return f"heads of width {width}"
    if query.shape[1] % key.shape[1]:
        return f"{query.shape[1]} heads on {key.shape[1]}"
    return None


def objection_of_the_card() -> str | None:
    """What the card that is compiled for has against it; None where it says nothing of itself."""
    capability = getattr(client().chip, "compute_capability", None)
    if capability is None or float(capability) >= _LEAST_CAPABILITY:
        return None
    return f"compute capability {capability}"


def _of_call_or_card(call: rules.Attention | rules.AttentionBackward) -> str | None:
    return objection(call) or objection_of_the_card()


def _fused(
    query: Array, key: Array, value: Array, is_causal: bool, scale: Any
) -> tuple[Array, Array]:
    """The kernel's output and the logsumexp of the scores, (batch, heads, queries)."""
    answer_for_the_card_at_work()
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
    factor = 1 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    out, logsumexp = jax.nn.dot_product_attention(
        q, k, v, is_causal=is_causal, scale=factor, implementation="cudnn", return_residual=True
    )
    # JAX rounds the logsumexp to the dtype of the query; the kernel of the backward gets the exact one.
    logsumexp = logsumexp.transpose(0, 2, 1).astype(np.dtype(np.float32))
    return out.transpose(0, 2, 1, 3), logsumexp


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    random="dropout_p",
    static=("dropout_p", "scale"),
    call=rules.Attention,
)
def scaled_dot_product_attention(call: rules.Attention) -> Any:
    """As the core's."""
    if objection(call) or objection_of_the_card():
        return rules.attention(call)
    query, key = call.query, call.key
    out, logsumexp = _fused(query, key, call.value, call.is_causal, call.scale)
    zero = lax.full((), 0, np.dtype(np.int64))
    return (out, logsumexp, None, None, query.shape[2], key.shape[2], zero, zero, None)


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    static=("dropout_p", "scale"),
    call=rules.AttentionBackward,
)
def scaled_dot_product_attention_backward(call: rules.AttentionBackward) -> Any:
    """As the core's."""
    if objection(call) or objection_of_the_card():
        return rules.attention_backward(call)

    def forward(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        return _fused(query, key, value, call.is_causal, call.scale)

    _, pull = jax.vjp(forward, call.query, call.key, call.value)
    grad_out = call.grad_out.astype(call.query.dtype)
    return (*pull((grad_out, lax.full_like(call.logsumexp, 0))), None)


# For rules that stand over these: what they do not take without writing out all scores.
scaled_dot_product_attention.objection = _of_call_or_card  # pyright: ignore[reportFunctionMemberAccess]
scaled_dot_product_attention_backward.objection = _of_call_or_card  # pyright: ignore[reportFunctionMemberAccess]
