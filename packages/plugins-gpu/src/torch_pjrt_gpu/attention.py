"""Attention by cuDNN's fused kernel, where it takes the call; the core's rule elsewhere.

The kernel never writes the scores out: memory grows with the sequence and not with its square. What it takes
is in `attention_limits.py`; what JAX has against a call that is none of ours is asked of JAX before the call
is made. So a call that is refused has another rule, and the reason is in reports.

The backward's kernel is given what the forward's kernel left: the rule calls that again, with the same
arguments, so that in one program with the forward the two calls are one.

The kernels' calls are in programs that were lowered for cards; no card has run those with a mask, nor with
heads wider than 128.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import LoweringTable, aten, rules
from torch_pjrt_gpu.attention_limits import Call, objection_of_call, objection_of_card
from torch_pjrt_gpu.cudnn import answer_for_the_card_at_work, capability, version

Array = jax.Array

table = LoweringTable("gpu")

# In place of minus infinity, which the kernel would subtract from itself: JAX's numbers, which are whole in
# these dtypes, and next to which no score counts.
_HIDDEN = {"bfloat16": -float(2 << 40), "float16": -float(2 << 14)}


def objection(call: Call) -> str | None:
    """What the fused kernel has against a call on the card that is compiled for; None if it takes it."""
    of_call = objection_of_call(call)
    if of_call is not None:
        return of_call
    of_card = objection_of_card(call.query.shape[3], capability(), version())
    return of_card or _objection_of_jax(call)


def _objection_of_jax(call: Call) -> str | None:
    """Whether this version of JAX makes the calls, tried without computing anything."""
    mask = call.attn_bias
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (call.query, call.key, call.value)]
    if mask is not None:
        given.append(jax.ShapeDtypeStruct(mask.shape, mask.dtype))
    fused = partial(_fused, is_causal=call.is_causal, scale=1.0)

    def both(*arrays: Array) -> Any:
        found, pull = jax.vjp(fused, *arrays)
        return pull(found)

    try:
        jax.eval_shape(both, *given)
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        return f"JAX refuses it: {type(error).__name__}: {said}"
    return None


def _fused(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    is_causal: bool,
    scale: Any,
) -> tuple[Array, Array]:
    """The kernel's output and the logsumexp of the scores, (batch, heads, queries).

    mask   as PyTorch's: bools say which keys are seen, others are added. A query that sees none gets zeros.
    """
    answer_for_the_card_at_work()
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
    factor = 1 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    bias = seen = None
    if mask is not None:
        bias, seen = _as_bias(mask, query, key)
    out, logsumexp = jax.nn.dot_product_attention(
        q, k, v, bias, is_causal=is_causal, scale=factor, implementation="cudnn",
        return_residual=True,
    )  # fmt: skip
    # JAX rounds the logsumexp to the dtype of the query; the kernel of the backward gets the exact one.
    logsumexp = logsumexp.transpose(0, 2, 1).astype(np.dtype(np.float32))
    out = out.transpose(0, 2, 1, 3)
    if seen is not None:
        there = lax.broadcast_in_dim(seen, logsumexp.shape, (0, 1, 2))
        logsumexp = lax.select(there, logsumexp, lax.full_like(logsumexp, -np.inf))
        out = lax.select(
            lax.broadcast_in_dim(seen, out.shape, (0, 1, 2)), out, lax.full_like(out, 0)
        )
    return out, logsumexp


def _as_bias(mask: Array, query: Array, key: Array) -> tuple[Array, Array]:
    """What is added to scores, as long as they are; and which queries see a key: 3 dims, each maybe 1."""
    mask = lax.expand_dims(mask, range(4 - mask.ndim))
    hidden = np.asarray(_HIDDEN[query.dtype.name], query.dtype)
    if mask.dtype == np.bool_:
        seen = mask
        bias = lax.select(mask, lax.full(mask.shape, 0, query.dtype), lax.full(mask.shape, hidden))
    else:
        seen = mask > np.asarray(-np.inf, mask.dtype)
        bias = lax.max(mask, lax.full_like(mask, hidden))
    whole = (*mask.shape[:2], query.shape[2], key.shape[2])
    return lax.broadcast_in_dim(bias, whole, range(4)), lax.reduce_or(seen, (3,))


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    random="dropout_p",
    static=("dropout_p", "scale"),
    call=rules.Attention,
)
def scaled_dot_product_attention(call: rules.Attention) -> Any:
    """As the core's."""
    if objection(call):
        return rules.attention(call)
    query, key, value = call.query, call.key, call.value
    fused = partial(_fused, is_causal=call.is_causal, scale=call.scale)
    out, logsumexp = fused(query, key, value, call.attn_bias)
    zero = lax.full((), 0, np.dtype(np.int64))
    return (out, logsumexp, None, None, query.shape[2], key.shape[2], zero, zero, None)


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    static=("dropout_p", "scale"),
    call=rules.AttentionBackward,
)
def scaled_dot_product_attention_backward(call: rules.AttentionBackward) -> Any:
    """As the core's."""
    if objection(call):
        return rules.attention_backward(call)
    mask = call.attn_bias
    given = [call.query, call.key, call.value]
    fused = partial(_fused, is_causal=call.is_causal, scale=call.scale)
    if mask is not None and mask.dtype == np.bool_:
        fused = partial(fused, mask=mask)
    elif mask is not None:
        given.append(mask)
    _, pull = jax.vjp(fused, *given)
    grad_out = call.grad_out.astype(call.query.dtype)
    of_query, of_key, of_value, *of_mask = pull((grad_out, lax.full_like(call.logsumexp, 0)))
    if mask is not None and mask.dtype == np.bool_:
        of_mask = [lax.full_like(mask, False)]
    return of_query, of_key, of_value, of_mask[0] if of_mask else None


# For rules that stand over these: what they do not take without writing out all scores.
scaled_dot_product_attention.objection = objection  # pyright: ignore[reportFunctionMemberAccess]
scaled_dot_product_attention_backward.objection = objection  # pyright: ignore[reportFunctionMemberAccess]
