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
    key: Array, p: float, whole: tuple[int, ...], first: tuple[Any, ...], block: tuple[int, ...]
) -> Array:
    """A mask of the shape `block`, True with probability `1 - p`: a block of that of all weights.

    key      of JAX, threefry.
    whole    the shape of all weights but its first dim, the batch. first: where the block begins.

    As `kept(key, shape_of_all, p)` of `torch_pjrt.plugin.rules`, there. Beyond that shape it is arbitrary.
    """
    n = len(block) - 1
    row = lax.full((*block[:n], 1), 0, UINT32)
    for dim, size in enumerate((1, *whole[:-1])):
        here = lax.broadcasted_iota(UINT32, row.shape, dim) + _unsigned(first[dim])
        row = row * np.uint32(size) + here
    high, low = _times(row, whole[-1])
    column = lax.broadcasted_iota(UINT32, block, n) + _unsigned(first[n])
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
