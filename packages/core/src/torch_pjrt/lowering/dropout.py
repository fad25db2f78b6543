"""Lowerings of dropout: a random part of the elements becomes 0, the others make up for it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.lowering.promote import Promote, as_dtype, opmath, promoted
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("dropout")


def kept(key: Array, shape: tuple[int, ...], p: float) -> Array:
    """A mask of this shape that is True with probability `1 - p`, to within 2**-32.

    >>> kept(jax.random.key(0), (2, 3), 0.5).dtype
    dtype('bool')
    """
    bits = jax.random.bits(key, shape, np.uint32)
    return bits >= np.uint32(min(round(p * 2**32), 2**32 - 1))


@table.lowers(aten.native_dropout.default, random=True, static=("p",))
def native_dropout(key: Array, input: Array, p: float, train: bool | None) -> tuple[Array, Array]:
    """The result, and the mask of what was kept. `train` of False keeps all, None means True."""
    if train is False:
        return input, lax.full(input.shape, True, np.dtype(np.bool_))
    if p == 0 or p == 1:
        mask = lax.full(input.shape, p == 0, np.dtype(np.bool_))
    else:
        mask = kept(key, input.shape, p)
    return _scaled(input, mask, 0 if p == 1 else 1 / (1 - p)), mask


@table.lowers(aten.native_dropout_backward.default)
def native_dropout_backward(grad_output: Array, mask: Array, scale: Any) -> Array:
    (grad,), _ = promoted((grad_output,), Promote.INT_TO_FLOAT)
    return _scaled(grad, mask, scale)


def _scaled(x: Array, mask: Array, scale: Any) -> Array:
    """`x * mask * scale`: a nan stays one where the mask is off, as in PyTorch."""
    wide = opmath(x.dtype)
    factor = lax.broadcast(as_dtype(scale, wide), mask.shape)
    factor = lax.select(mask, factor, lax.full_like(factor, 0))
    return as_dtype(as_dtype(x, wide) * factor, x.dtype)
