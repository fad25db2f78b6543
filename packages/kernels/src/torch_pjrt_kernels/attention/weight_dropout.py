"""Which weights of attention are dropped, block by block: what `torch_pjrt` draws for all weights at once.

Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (2011): a random number is a
function of a key and of a counter, here the number of the weight in (batch, heads, queries, keys). So a block
can draw its own, in the forward and again in the backward, whatever the blocks are.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

Array = jax.Array
UINT32 = np.dtype(np.uint32)
_HALF = np.uint32(0xFFFF)
_16 = np.uint32(16)


def kept_block(
    key: Array,
    p: float,
    heads: tuple[int, ...],
    whole: tuple[int, int],
    first: tuple[Any, Any],
    block: tuple[int, ...],
) -> Array:
    """A mask of shape (*heads, *block), True with probability `1 - p`.

    key      of JAX, threefry.
    whole    how many queries and keys there are, `block` in a block. first: its first query and key.

    As `kept(key, (*heads, *whole), p)` of `torch_pjrt.plugin.rules`, there. Beyond `whole` it is arbitrary.
    """
    queries, keys = whole
    shape = (*heads, *block)
    row = lax.full((*heads, block[0], 1), 0, UINT32)
    for dim, size in enumerate(heads):
        row = row * np.uint32(size) + lax.broadcasted_iota(UINT32, row.shape, dim)
    of_block = lax.broadcasted_iota(UINT32, row.shape, len(heads))
    row = row * np.uint32(queries) + (of_block + _unsigned(first[0]))
    high, low = _times(row, keys)
    column = lax.broadcasted_iota(UINT32, shape, len(shape) - 1) + _unsigned(first[1])
    at = low + column
    carried = lax.convert_element_type(at < column, UINT32)
    words = jax.random.key_data(key)
    bits = threefry2x32_p.bind(words[0], words[1], high + carried, at)
    return (bits[0] ^ bits[1]) >= np.uint32(min(round(p * 2**32), 2**32 - 1))


def _unsigned(x: Any) -> Array:
    return lax.convert_element_type(x, UINT32)


def _times(x: Array, factor: int) -> tuple[Array, Array]:
    """The 64 bits of the products of numbers of 32 bits, as their upper and lower halves."""
    low, high = np.uint32(factor & 0xFFFF), np.uint32(factor >> 16)
    x_low, x_high = x & _HALF, x >> _16
    first, second, third = x_low * low, x_low * high, x_high * low
    middle = (first >> _16) + (second & _HALF) + (third & _HALF)
    upper = x_high * high + (second >> _16) + (third >> _16) + (middle >> _16)
    return upper, (middle << _16) | (first & _HALF)
