"""Stacks of a graph: values of one shape as one array, and elements of it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.client.client import client
from torch_pjrt.graph.graph import Node

Array = jax.Array


def stacked(node: Node, values: Sequence[Array]) -> Array:
    """What `pjrt.stack` makes of values and of parts of stacks."""
    plan = node.signature.args[1] if len(node.signature.args) > 1 else None
    if plan is None:
        return jnp.stack(values)
    parts = []
    for value, piece in zip(values, plan, strict=True):
        if piece is None:
            parts.append(value[None])
            continue
        start, length, step = piece
        low = min(start, start + (length - 1) * step)
        part = lax.slice_in_dim(value, low, low + (length - 1) * abs(step) + 1, abs(step))
        parts.append(part if step > 0 else lax.rev(part, (0,)))
    return jnp.concatenate(parts)


def elements(stack: Array, indices: Sequence[int]) -> Sequence[Array]:
    """These elements of a stack, by the device's way."""
    has_all = client().capabilities.operations is None
    positions = _POSITIONS.get(client().chip.platform if has_all else "", _known)(indices)
    return [lax.dynamic_index_in_dim(stack, position, keepdims=False) for position in positions]


def _known(indices: Sequence[int]) -> Sequence[int]:
    return indices


def _unseen(indices: Sequence[int]) -> Sequence[int] | Sequence[Array]:
    """`indices` as numbers that XLA does not look through, if there are enough of them.

    XLA's CPU compiler makes a kernel of 10 to 20 ms for each slice at a known index, and for each that
    reads such a slice, but only one for all that are alike at indices which it does not know. It does not
    know what a sort does, whose payload is the same in both positions.
    """
    if len(indices) < _FEWEST_UNSEEN:
        return indices
    unseen: list[Array] = []
    for first in range(0, len(indices), _MOST_SORTED):
        some = indices[first : first + _MOST_SORTED]
        keys = jnp.arange(2, dtype=np.int32)
        payload = [jnp.full(2, index, np.int32) for index in some]
        unseen += [pair[0] for pair in lax.sort([keys, *payload], num_keys=1)[1:]]
    return unseen


_FEWEST_UNSEEN = 4
_MOST_SORTED = 256

# How an index is written on a platform. Where it is not listed, as a constant.
_POSITIONS: dict[str, Callable[[Sequence[int]], Sequence[int] | Sequence[Array]]] = {"cpu": _unseen}
