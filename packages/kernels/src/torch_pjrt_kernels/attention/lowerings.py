"""PyTorch's own attention, on every device: rules that stand over the device's, for long sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import unwrap
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import LoweringTable, aten, client, rules
from torch_pjrt_kernels.attention import own_on_chips, tpu
from torch_pjrt_kernels.attention.choice import (
    AT_ONCE,
    BLOCKS,
    OWN,
    SPLASH,
    Problem,
    Way,
    first_without,
    objection_to_blocks,
    sizes_of,
)
from torch_pjrt_kernels.attention.form import Form, Sizes
from torch_pjrt_kernels.attention.groups import backward, forward
from torch_pjrt_kernels.own.sharding import splits

Array = jax.Array
Call = rules.Attention | rules.AttentionBackward

table = LoweringTable("kernels")


def problem_of(call: Call) -> Problem:
    """The shapes of a call, of three dims or four."""
    (b, h, q, w), key, value = ((1, *x.shape)[-4:] for x in (call.query, call.key, call.value))
    dtype = call.query.dtype.name
    return Problem(b, h, key[1], q, key[2], w, value[3], dtype, bool(call.is_causal))


def way_of(call: Call, beneath: Callable[..., Any]) -> Way:
    """How a call is computed, and why not otherwise: the same for the forward and its backward.

    beneath   the device's rule. Where it is a kernel, its `objection` says what it does not take.
    """
    problem = problem_of(call)
    of_rule = getattr(unwrap(beneath), "objection", None)
    is_short = objection_to_blocks(problem)
    in_blocks = objection_to_blocks(problem, over_rule_of_cpu=_is_on_cpu())
    bias, dropout_p = call.attn_bias is not None, call.dropout_p
    dtype = call.query.dtype.name
    by_kernel = is_short or tpu.objection_of_the_chip()
    by_kernel = by_kernel or tpu.objection(problem, dtype, has_bias=bias, dropout_p=dropout_p)
    by_kernel = by_kernel or _pattern(call).objection(problem)
    return first_without(
        {
            OWN: "it has none" if of_rule is None else of_rule(call),
            SPLASH: by_kernel,
            BLOCKS: in_blocks,
            AT_ONCE: None,
        }
    )


@table.lowers_over(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    static=("dropout_p",),
    call=rules.Attention,
)
def scaled_dot_product_attention(
    beneath: Callable[[rules.Attention], Any], call: rules.Attention
) -> Any:
    """As core's: the output, the logsumexp, and the seed of what is dropped among what is not used."""
    problem, way = problem_of(call), way_of(call, beneath).name
    if way == OWN and splits():
        return own_on_chips.forward(beneath, call)
    if way in (OWN, AT_ONCE):
        return beneath(call)
    query, key, value = (_batched(x) for x in (call.query, call.key, call.value))
    seed, dropout_key = lax.full((), 0, np.dtype(np.int64)), call.dropout_key
    if dropout_key is not None:
        seed = rules.seed_of(dropout_key)
        dropout_key = rules.key_of(seed)
    if way == SPLASH:
        out, logsumexp = tpu.forward(query, key, value, _scale(call), _pattern(call))
    else:
        form = _form(call, dropout_key)
        out, logsumexp = forward(query, key, value, form, _sizes(problem))
    shape = (*call.query.shape[:-1], call.value.shape[-1])
    logsumexp = lax.convert_element_type(logsumexp, np.dtype(np.float32))
    return (
        lax.reshape(out, shape), logsumexp, None, None, problem.queries, problem.keys,
        seed, lax.full((), 0, np.dtype(np.int64)), None,
    )  # fmt: skip


@table.lowers_over(
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    static=("dropout_p",),
    call=rules.AttentionBackward,
)
def scaled_dot_product_attention_backward(
    beneath: Callable[[rules.AttentionBackward], Any], call: rules.AttentionBackward
) -> Any:
    """As core's. The logsumexp has 32 bits: for queries of 64 it is made anew."""
    problem, way = problem_of(call), way_of(call, beneath).name
    if way == OWN and splits():
        return own_on_chips.backward(beneath, call)
    if way in (OWN, AT_ONCE):
        return beneath(call)
    grad, query, key, value, out = (
        _batched(x) for x in (call.grad_out, call.query, call.key, call.value, call.out)
    )
    if way == SPLASH:
        found = tpu.backward(grad, query, key, value, _scale(call), _pattern(call))
        like = (call.query, call.key, call.value)
        return *(lax.reshape(x, y.shape) for x, y in zip(found, like, strict=True)), None
    dropout_key = rules.key_of(call.philox_seed) if call.dropout_p else None
    form, sizes, logsumexp = _form(call, dropout_key), _sizes(problem), call.logsumexp
    if rules.opmath(query.dtype) != logsumexp.dtype:
        _, logsumexp = forward(query, key, value, form, sizes)
    bias = call.attn_bias
    wanted = bias is not None and bias.dtype != np.bool_ and bool(call.grad_input_mask[3])
    found = backward(grad, query, key, value, out, logsumexp, form, sizes, of_bias=wanted)
    grad_bias = None
    if bias is not None:
        grad_bias = lax.full(bias.shape, 0, bias.dtype)  # nobody reads it
        if found.bias is not None:
            grad_bias = lax.reshape(found.bias, bias.shape)
    return (
        lax.reshape(found.query, call.query.shape),
        lax.reshape(found.key, call.key.shape),
        lax.reshape(found.value, call.value.shape),
        grad_bias,
    )


def _pattern(call: Call) -> tpu.Pattern:
    return tpu.Pattern(behind=0 if call.is_causal else None, first_row=call.first_row)


def _form(call: Call, dropout_key: Array | None) -> Form:
    bias = call.attn_bias
    if bias is not None:
        bias = lax.expand_dims(bias, range(4 - bias.ndim))
    return Form(
        _scale(call),
        bias=bias,
        is_causal=call.is_causal,
        first_row=call.first_row,
        dropout_p=call.dropout_p,
        dropout_key=dropout_key,
    )


def _scale(call: Call) -> Any:
    return 1 / math.sqrt(call.query.shape[-1]) if call.scale is None else call.scale


def _sizes(problem: Problem) -> Sizes:
    return sizes_of(problem, on_cpu=_is_on_cpu())


def _is_on_cpu() -> bool:
    return client().device.name == "CPU"


def _batched(x: Array) -> Array:
    return x if x.ndim == 4 else lax.expand_dims(x, (0,))
