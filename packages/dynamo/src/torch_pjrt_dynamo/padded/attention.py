"""Attention: keys that are not there get no weight, queries that are not there give no gradient."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_pjrt.extend.padding import Sized, Unsuited, has_padding, one_factor
from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.padded.dims import one_of_each
from torch_pjrt_dynamo.padded.sized import NodeCall


def _checked(call: NodeCall) -> None:
    query, key, value = call["query"], call["key"], call["value"]
    if call["dropout_p"]:
        raise Unsuited("it drops weights by random numbers")
    if has_padding(query.dims[3]) or has_padding(value.dims[3]) or query.dims[0] != key.dims[0]:
        raise Unsuited("it joins sizes that vary in another order")
    if key.dims[:3] != value.dims[:3] or has_padding(query.dims[1]) or has_padding(key.dims[1]):
        raise Unsuited("it joins sizes that vary in another order")
    one_factor(query.dims[2])
    one_factor(key.dims[2])
    if call["is_causal"] and has_padding(key.dims[2]) and query.dims[2] != key.dims[2]:
        raise Unsuited("queries and keys of causal attention vary apart")


def _bias(call: NodeCall, bias: Sized | None) -> Sized | None:
    """The bias, with -inf (False) for keys that are not there. A causal query sees none of those anyway."""
    key = call["key"]
    if call["is_causal"] or not has_padding(key.dims[2]):
        return bias
    if bias is None:
        like = call["query"].tensor
        zeros = torch.zeros((1, 1, 1, key.tensor.shape[2]), dtype=like.dtype, device=like.device)
        bias = Sized(zeros, ((), (), (), key.dims[2]))
    elif not bias.dims[-1]:
        shape = [*bias.tensor.shape[:-1], key.tensor.shape[2]]
        bias = Sized(bias.tensor.expand(shape), (*bias.dims[:-1], key.dims[2]))
    is_mask = bias.tensor.dtype == torch.bool
    return call.filled(bias, [bias.ndim - 1], False if is_mask else -math.inf)


def attention(call: NodeCall) -> list[Any]:
    """A key that is not there is filled too, and its value: no weight is so small that it hides NaN."""
    _checked(call)
    query, value = call["query"], call["value"]
    filled = {name: call.filled(call[name], [2], 0) for name in ("key", "value")}
    out, logsumexp, *rest = call.do(**filled, attn_bias=_bias(call, call["attn_bias"]))
    made = [
        call.result(out, (*query.dims[:3], value.dims[3])),
        call.result(logsumexp, query.dims[:3]),
    ]
    return [*made, *(Sized(x, one_of_each(x)) if isinstance(x, torch.Tensor) else x for x in rest)]


def attention_backward(call: NodeCall) -> list[Any]:
    _checked(call)
    names = "grad_out", "query", "key", "value", "out", "logsumexp"
    filled: dict[str, Any] = {name: call.all_filled(call[name], 0) for name in names}
    bias, wanted = call["attn_bias"], call["grad_input_mask"]
    if bias is not None:
        if wanted[3] and not bias.dims[-1] and has_padding(call["key"].dims[2]):
            raise Unsuited("a bias that is the same for all keys needs its gradient")
        bias = call.filled(bias, range(bias.ndim - 1), 0)
    lengths = {name: call.plain(call[name]) for name in ("max_q", "max_k")}
    results = call.do(**filled, **lengths, attn_bias=_bias(call, bias))
    of = ["query", "key", "value", "attn_bias"]
    return [
        None if r is None or call[name] is None else call.result(r, call[name].dims)
        for r, name in zip(results, of, strict=True)
    ]


RULES: dict[Any, Any] = {
    aten._scaled_dot_product_fused_attention_overrideable.default: attention,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: attention_backward,
}
