"""Attention as XLA's CPU compiler does it well: causal attention in blocks of queries, products turned round.

A causal query looks at no later key. So queries are taken in blocks, each with the keys up to its last:
two blocks compute 3/4 of all scores, four 5/8. The blocks depend on nothing of each other, and run side by
side.

Two products of the backward sum over the rows of both factors. With the wide one, of scores, first, XLA's
CPU compiler gives them to a routine that it knows nothing faster for; with it second they are taken by the
library that takes the others, and the result, which is narrow, is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from torch_pjrt.plugin import LoweringTable, aten, rules

Array = jax.Array

table = LoweringTable("CPU")

# (shortest sequence, blocks of queries), by measurement: more take longer to compile, and gain nothing.
_BLOCKS = ((512, 4), (128, 2))


def over_rows(x: Array, y: Array) -> Array:
    """The barrier keeps XLA from turning the product round again."""
    turned = lax.optimization_barrier(rules.over_rows(y, x))
    return lax.transpose(turned, (0, 1, 3, 2))


def _blocks(
    query: Array, key: Array, attn_bias: Array | None, dropout_p: float, is_causal: bool
) -> list[tuple[int, int]]:
    """The first query of each block and the one behind its last; none where it is better done at once."""
    n = query.shape[-2]
    if not is_causal or attn_bias is not None or dropout_p or key.shape[-2] != n:
        return []
    if rules.opmath(query.dtype) != query.dtype:  # sums over blocks would be rounded once more
        return []
    number = next((blocks for shortest, blocks in _BLOCKS if n >= shortest), 1)
    size = -(-n // number)
    return [(first, min(first + size, n)) for first in range(0, n, size)] if number > 1 else []


def _rows(x: Array, first: int, end: int) -> Array:
    return lax.slice_in_dim(x, first, end, axis=x.ndim - 2)


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    random="dropout_p",
    static=("dropout_p",),
)
def scaled_dot_product_attention(
    key_: Array | None,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple[Any, ...]:
    def forward(rows: Array, keys: Array, values: Array, first_row: int) -> tuple[Any, ...]:
        return rules.attention(
            key_,
            rows,
            keys,
            values,
            attn_bias,
            dropout_p,
            is_causal,
            scale=scale,
            first_row=first_row,
        )

    blocks = _blocks(query, key, attn_bias, dropout_p, is_causal)
    if not blocks:
        return forward(query, key, value, 0)
    parts = [
        forward(_rows(query, first, end), _rows(key, 0, end), _rows(value, 0, end), first)
        for first, end in blocks
    ]
    out = lax.concatenate([part[0] for part in parts], query.ndim - 2)
    logsumexp = lax.concatenate([part[1] for part in parts], 2)
    return (out, logsumexp, None, None, query.shape[-2], key.shape[-2], *parts[0][6:])


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    static=("dropout_p",),
)
def scaled_dot_product_attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    grad_input_mask: Sequence[bool],
    out: Array,
    logsumexp: Array,
    cum_seq_q: None,
    cum_seq_k: None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Array,
    philox_offset: Array,
    *,
    scale: Any = None,
) -> tuple[Array, Array, Array, Array | None]:
    def backward(
        grad: Array, rows: Array, keys: Array, values: Array, out: Array, first_row: int
    ) -> tuple[Array, Array, Array, Array | None]:
        return rules.attention_backward(
            grad,
            rows,
            keys,
            values,
            attn_bias,
            grad_input_mask,
            out,
            logsumexp,
            cum_seq_q,
            cum_seq_k,
            max_q,
            max_k,
            dropout_p,
            is_causal,
            philox_seed,
            philox_offset,
            scale=scale,
            first_row=first_row,
            over_rows=over_rows,
        )

    blocks = _blocks(query, key, attn_bias, dropout_p, is_causal)
    if not blocks:
        return backward(grad_out, query, key, value, out, 0)
    parts = [
        backward(
            _rows(grad_out, first, end),
            _rows(query, first, end),
            _rows(key, 0, end),
            _rows(value, 0, end),
            _rows(out, first, end),
            first,
        )
        for first, end in blocks
    ]
    grad_query = lax.concatenate([part[0] for part in parts], query.ndim - 2)
    return grad_query, *(_summed([part[i] for part in parts], blocks) for i in (1, 2)), None


def _summed(parts: Sequence[Array], blocks: Sequence[tuple[int, int]]) -> Array:
    """The sum of what the blocks give for the keys up to their last."""
    sums = []
    for number, (first, end) in enumerate(blocks):
        total = _rows(parts[number], first, end)
        for later in parts[number + 1 :]:
            total = total + _rows(later, first, end)
        sums.append(total)
    return lax.concatenate(sums, parts[0].ndim - 2)
