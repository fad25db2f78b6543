"""RMS norm by a kernel for TPUs: rows are read once, forward and backward.

XLA sums over a row in one loop and reads the row again in the next, and the backward sums three times
(benchmarks/results/kernels.md). Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

Array = jax.Array
_LANES, _SUBLANES = 128, 16
# Of a block of rows in float32: some of them are in the chip's fast memory at a time.
_BLOCK_BYTES = 2**20
_DTYPES = ("bfloat16", "float32")


def objection(rows: int, width: int, dtype: str, weight: str | None) -> str | None:
    """What the kernel has against a call, from shapes and dtypes alone; None if it takes it."""
    if dtype not in _DTYPES or weight not in _DTYPES:
        return f"it takes bfloat16 or float32 with a weight, and this is {dtype} with {weight}"
    if width % _LANES or _rows_of_block(rows, width) is None:
        return f"{rows} rows of {width}: it takes multiples of {_SUBLANES} and of {_LANES}"
    return None


def _rows_of_block(rows: int, width: int) -> int | None:
    """The greatest power of two that divides the rows, within bounds."""
    size = rows & -rows
    while size > _SUBLANES and 4 * size * width > _BLOCK_BYTES:
        size //= 2
    return size if size >= _SUBLANES and 4 * size * width <= 4 * _BLOCK_BYTES else None


def with_eps(eps: float) -> Callable[..., tuple[Array, Array]]:
    """`forward` of arrays alone."""
    return partial(forward, eps=eps)


def forward(x: Array, weight: Array, eps: Any) -> tuple[Array, Array]:
    """The rows of `x`, (rows, width), normalized, times `weight`; of each what it was multiplied by."""
    rows, width = x.shape
    size = _rows_of_block(rows, width)
    assert size is not None
    whole, one = (
        pl.BlockSpec((size, width), lambda i: (i, 0)),
        pl.BlockSpec((1, width), lambda i: (0, 0)),
    )
    return pl.pallas_call(
        partial(_forward, eps=float(eps)),
        grid=(rows // size,),
        in_specs=[whole, one],
        out_specs=[whole, pl.BlockSpec((size, 1), lambda i: (i, 0))],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((rows, 1), np.dtype(np.float32)),
        ],
    )(x, lax.reshape(weight, (1, width)))


def _forward(x_ref: Any, weight_ref: Any, y_ref: Any, rstd_ref: Any, *, eps: float) -> None:
    x = x_ref[...].astype(np.float32)
    rstd = lax.rsqrt(jnp.mean(x * x, 1, keepdims=True) + np.float32(eps))
    y_ref[...] = (x * rstd * weight_ref[...].astype(np.float32)).astype(y_ref.dtype)
    rstd_ref[...] = rstd


def backward(grad: Array, x: Array, rstd: Array, weight: Array) -> tuple[Array, Array]:
    """The gradients of `x` and, in float32, of `weight`. `rstd` is (rows, 1), as the forward gives it."""
    rows, width = x.shape
    size = _rows_of_block(rows, width)
    assert size is not None
    whole, one = (
        pl.BlockSpec((size, width), lambda i: (i, 0)),
        pl.BlockSpec((1, width), lambda i: (0, 0)),
    )
    of_x, of_weight = pl.pallas_call(
        _backward,
        grid=(rows // size,),
        in_specs=[whole, whole, pl.BlockSpec((size, 1), lambda i: (i, 0)), one],
        out_specs=[whole, one],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((1, width), np.dtype(np.float32)),
        ],
    )(grad, x, rstd, lax.reshape(weight, (1, width)))
    return of_x, lax.reshape(of_weight, (width,))


def _backward(
    grad_ref: Any, x_ref: Any, rstd_ref: Any, weight_ref: Any, of_x_ref: Any, of_weight_ref: Any
) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _() -> None:  # it is the same block all along
        of_weight_ref[...] = jnp.zeros_like(of_weight_ref)

    rstd, grad = rstd_ref[...], grad_ref[...].astype(np.float32)
    normal = x_ref[...].astype(np.float32) * rstd
    of_weight_ref[...] += jnp.sum(grad * normal, 0, keepdims=True)
    scaled = grad * weight_ref[...].astype(np.float32)
    along = jnp.mean(scaled * normal, 1, keepdims=True)
    of_x_ref[...] = (rstd * (scaled - normal * along)).astype(of_x_ref.dtype)
