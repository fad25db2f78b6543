"""Attention as XLA's CPU compiler does it well: causal attention in blocks of queries, products turned round.

A causal query looks at no later key. So queries are taken in blocks, each with the keys up to its last:
two blocks compute 3/4 of all scores, four 5/8. The blocks depend on nothing of each other, and run side by
side.

Two products of the backward sum over the rows of both factors. With the wide one, of scores, first, XLA's
CPU compiler gives them to a routine that it knows nothing faster for; with it second they are taken by the
library that takes the others, and the result, which is narrow, is transposed. Few rows or columns gain
nothing by that, and XLA's compiler ends the process ("Check failed: ... IsMonotonicWithDim0Major") at some
small products that are turned round, batches of batches, and returned as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import lax

from torch_pjrt.plugin import LoweringTable, aten, rules

Array = jax.Array

table = LoweringTable("CPU")

# (shortest sequence, blocks of queries), by measurement: more take longer to compile, and gain nothing.
_BLOCKS = ((512, 4), (128, 2))

# The fewest rows and columns of scores whose product is turned round, by measurement.
_ROWS, _COLUMNS = 64, 128


def over_rows(x: Array, y: Array) -> Array:
    """Of scores, and what is narrow. The barrier keeps XLA from turning the product round again."""
    if x.shape[2] < _ROWS or x.shape[3] < _COLUMNS:
        return rules.over_rows(x, y)
    turned = lax.optimization_barrier(rules.over_rows(y, x))
    return lax.transpose(turned, (0, 1, 3, 2))


def _blocks(call: rules.Attention | rules.AttentionBackward) -> list[tuple[int, int]]:
    """The first query of each block and the one behind its last; none where it is better done at once."""
    n = call.query.shape[-2]
    if not call.is_causal or call.attn_bias is not None or call.dropout_p:
        return []
    if call.key.shape[-2] != n:
        return []
    if rules.opmath(call.query.dtype) != call.query.dtype:  # sums would be rounded once more
        return []
    number = next((blocks for shortest, blocks in _BLOCKS if n >= shortest), 1)
    size = -(-n // number)
    return [(first, min(first + size, n)) for first in range(0, n, size)] if number > 1 else []


def _rows(x: Array, first: int, end: int) -> Array:
    return lax.slice_in_dim(x, first, end, axis=x.ndim - 2)


def _block(call: Any, first: int, end: int, of_queries: Sequence[str]) -> Any:
    """The call for the queries of one block, and the keys up to its last."""
    parts = {name: _rows(getattr(call, name), first, end) for name in of_queries}
    key, value = _rows(call.key, 0, end), _rows(call.value, 0, end)
    return replace(call, key=key, value=value, first_row=first, **parts)


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    random="dropout_p",
    static=("dropout_p",),
    call=rules.Attention,
)
def scaled_dot_product_attention(call: rules.Attention) -> tuple[Any, ...]:
    blocks = _blocks(call)
    if not blocks:
        return rules.attention(call)
    parts = [rules.attention(_block(call, *block, ("query",))) for block in blocks]
    query, key = call.query, call.key
    out = lax.concatenate([part[0] for part in parts], query.ndim - 2)
    logsumexp = lax.concatenate([part[1] for part in parts], 2)
    return (out, logsumexp, None, None, query.shape[-2], key.shape[-2], *parts[0][6:])


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    static=("dropout_p",),
    call=rules.AttentionBackward,
)
def scaled_dot_product_attention_backward(
    call: rules.AttentionBackward,
) -> tuple[Array, Array, Array, Array | None]:
    blocks = _blocks(call)
    if not blocks:
        return rules.attention_backward(call, over_rows)
    of_queries = ("grad_out", "query", "out")
    parts = [
        rules.attention_backward(_block(call, *block, of_queries), over_rows) for block in blocks
    ]
    grad_query = lax.concatenate([part[0] for part in parts], call.query.ndim - 2)
    grad_key, grad_value = (_summed([part[i] for part in parts], blocks) for i in (1, 2))
    return grad_query, grad_key, grad_value, None


def _summed(parts: Sequence[Array], blocks: Sequence[tuple[int, int]]) -> Array:
    """The sum of what the blocks give for the keys up to their last."""
    sums = []
    for number, (first, end) in enumerate(blocks):
        total = _rows(parts[number], first, end)
        for later in parts[number + 1 :]:
            total = total + _rows(later, first, end)
        sums.append(total)
    return lax.concatenate(sums, parts[0].ndim - 2)
