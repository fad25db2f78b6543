"""The device's own kernel of attention where XLA splits the program: each chip calls it for its parts.

JAX's rule for cuDNN's kernel does so as well, and fails where keys are not split as queries are: with fewer
key heads than chips that share out query heads, say. Here these keys are repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import rules
from torch_pjrt_kernels.own.rule_of_dims import SplittingRule
from torch_pjrt_kernels.own.sharding import split

Array = jax.Array

_QKV, _OUT, _SUMS = "b (n g) q w, b n k w, b n k v", "b (n g) q v", "b (n g) q"
_SPLIT, _SHARED = ("b", "n"), ("n", "g")


def forward(beneath: Callable[[rules.Attention], Any], call: rules.Attention) -> tuple[Any, ...]:
    """As the rule beneath, of a call without dropout."""
    mask, names = _mask(call)

    def run(query: Array, key: Array, value: Array, *masks: Array) -> tuple[Array, Array]:
        parts = replace(call, query=query, key=key, value=value, attn_bias=_one(masks))
        return beneath(parts)[:2]

    rule = _rule([_QKV, *names], [_OUT, _SUMS])
    out, logsumexp = split(run, rule, (call.query, call.key, call.value, *mask))
    zero = lax.full((), 0, np.dtype(np.int64))
    n_queries, n_keys = call.query.shape[-2], call.key.shape[-2]
    return out, logsumexp, None, None, n_queries, n_keys, zero, zero, None


def backward(
    beneath: Callable[[rules.AttentionBackward], Any], call: rules.AttentionBackward
) -> tuple[Any, ...]:
    """As the rule beneath."""
    bias, (mask, names) = call.attn_bias, _mask(call)
    has_gradient = bias is not None and bias.dtype != np.bool_

    def run(
        grad: Array, query: Array, key: Array, value: Array, out: Array, logsumexp: Array, *masks: Array
    ) -> tuple[Array, ...]:  # fmt: skip
        found = beneath(
            replace(
                call, grad_out=grad, query=query, key=key, value=value, out=out,
                logsumexp=logsumexp, attn_bias=_one(masks), philox_seed=0, philox_offset=0,
            )
        )  # fmt: skip
        return tuple(found[: 4 if has_gradient else 3])

    results = [_QKV, *(names if has_gradient else [])]
    rule = _rule([_OUT, _QKV, _OUT, _SUMS, *names], results)
    given = (call.grad_out, call.query, call.key, call.value, call.out, call.logsumexp, *mask)
    *found, last = split(run, rule, given)
    if has_gradient and bias is not None:
        return *found, lax.reshape(last, bias.shape)
    of_mask = None if bias is None else lax.full(bias.shape, False)
    return *found, last, of_mask


def _one(masks: tuple[Array, ...]) -> Array | None:
    return masks[0] if masks else None


def _mask(call: Any) -> tuple[list[Array], list[str]]:
    """The mask in four dims, and their names; nothing where there is none."""
    mask = call.attn_bias
    if mask is None:
        return [], []
    mask = lax.expand_dims(mask, range(4 - mask.ndim))
    names = (("b", "one_batch"), ("(n g)", "one_head"), ("q", "one_query"), ("k", "one_key"))
    dims = [one if n == 1 else name for (name, one), n in zip(names, mask.shape, strict=True)]
    return [mask], [" ".join(dims)]


def _rule(arrays: list[str], results: list[str]) -> SplittingRule:
    left, right = ", ".join(arrays), ", ".join(results)
    n_arrays, n_results = left.count(",") + 1, right.count(",") + 1
    return SplittingRule.parsed(f"{left} -> {right}", n_arrays, n_results, _SPLIT, _SHARED)
