"""Rotary positions by a kernel for TPUs: each array is read once and written once.

XLA writes the two halves and joins them in loops of their own (benchmarks/results/kernels.md). Su, Lu, Pan,
Murtadha, Wen, Liu, "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021). The kernel has
been compiled ahead for v5e, and interpreted; no TPU has run it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

Array = jax.Array
_LANES, _SUBLANES, _LARGEST = 128, 16, 512
_DTYPES = ("bfloat16", "float32")


def objection(positions: int, width: int, *dtypes: str) -> str | None:
    """What the kernel has against a call, from shapes and dtypes alone; None if it takes it."""
    if not set(dtypes) <= set(_DTYPES):
        return f"it takes bfloat16 and float32, and this is {', '.join(sorted(set(dtypes)))}"
    if width % _LANES or positions % _SUBLANES:
        return (
            f"{positions} positions of {width}: it takes multiples of {_SUBLANES} and of {_LANES}"
        )
    return None


def turned(x: Array, cos: Array, sin: Array, *, back: bool) -> Array:
    """As the operator, of `x` BHPW and tables 1PW or BPW; `back`: its gradient, of the result's."""
    b, h, p, w = x.shape
    size = min(p & -p, _LARGEST)
    rows = pl.BlockSpec((1, 1, size, w), lambda b, i, h: (b, h, i, 0))
    one = cos.shape[0] == 1
    table = pl.BlockSpec((1, size, w), lambda b, i, h: (0 if one else b, i, 0))
    return pl.pallas_call(
        partial(_turn, back=back),
        grid=(b, p // size, h),  # heads last: they share a block of the tables
        in_specs=[rows, table, table],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, cos, sin)


def _turn(x_ref: Any, cos_ref: Any, sin_ref: Any, y_ref: Any, *, back: bool) -> None:
    x, cos, sin = (r[...].astype(np.float32) for r in (x_ref, cos_ref, sin_ref))
    x, cos, sin = x[0, 0], cos[0], sin[0]
    half = x.shape[1] // 2
    if back:
        y = x * sin
        other = jnp.concatenate([y[:, half:], -y[:, :half]], 1)
    else:
        other = jnp.concatenate([-x[:, half:], x[:, :half]], 1) * sin
    y_ref[0, 0] = (x * cos + other).astype(y_ref.dtype)
