"""The complex dtype of float16, which XLA lacks: held as complex64 whose parts are numbers of float16.

Rules compute in complex64, as PyTorch's CPU kernels do, and each result is rounded (`settled`). Where a view
shows the bytes of such an array, or makes one of bytes, they are those of pairs of float16.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

Array = jax.Array


def settled(result: Array, dtype: torch.dtype) -> Array:
    """What a rule gave, where complex32 goes in or comes out: rounded, if `dtype` is that or float16."""
    if dtype is torch.complex32 and result.dtype == jnp.complex64:
        return of_pairs(pairs_of(result))
    if dtype is torch.float16 and result.dtype == jnp.float32:
        return result.astype(jnp.float16)
    return result


def pairs_of(x: Array) -> Array:
    """Real and imaginary parts along a new last dim, float16. XLA must not drop the rounding."""
    parts = jnp.stack([lax.real(x), lax.imag(x)], -1)
    return lax.optimization_barrier(parts.astype(jnp.float16))


def of_pairs(pairs: Array) -> Array:
    """The complex64 numbers of parts along the last dim."""
    parts = pairs.astype(jnp.float32)
    return lax.complex(parts[..., 0], parts[..., 1])
