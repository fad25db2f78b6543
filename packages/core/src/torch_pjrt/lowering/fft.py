"""Lowerings of Fourier transforms.

`normalization` is PyTorch's code: 0 leaves the sums as they are, 1 divides by the root of the
number of elements, 2 by the number, whichever the direction. `dim` may name dims in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import wrapped_all
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("fft")

# XLA transforms the innermost dims, up to so many at once.
AT_ONCE = 3


def _scaled(x: Array, count: int, normalization: int, inverse: bool) -> Array:
    """`x` in PyTorch's normalization; XLA has divided an inverse transform by `count`."""
    factor = {0: 1.0, 1: 1 / sqrt(max(count, 1)), 2: 1 / max(count, 1)}[normalization]
    factor *= count if inverse else 1
    if factor == 1:
        return x
    return lax.mul(x, lax.full_like(x, factor))


def _transformed(x: Array, dims: Sequence[int], kind: lax.FftType, sizes: Sequence[int]) -> Array:
    """The transform over these dims, the last of them being the halved one of a real transform."""
    order = [*(d for d in range(x.ndim) if d not in dims), *dims]
    back = np.argsort(order).tolist()
    x = lax.fft(lax.transpose(x, order), kind, tuple(sizes))
    return lax.transpose(x, back)


def _complex_transform(x: Array, dims: Sequence[int], forward: bool) -> Array:
    kind = lax.FftType.FFT if forward else lax.FftType.IFFT
    for i in range(0, len(dims), AT_ONCE):
        # Sorted, so that dims that already lie innermost need no transpose.
        some = sorted(dims[i : i + AT_ONCE])
        x = _transformed(x, some, kind, [x.shape[d] for d in some])
    return x


@table.lowers(aten._fft_c2c.default)
def fft_c2c(self: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    dims = sorted(wrapped_all(dim, self.ndim))
    if not dims or not self.size:
        return self
    count = prod(self.shape[d] for d in dims)
    x = _complex_transform(self, dims, forward)
    return _scaled(x, count, normalization, inverse=not forward)


@table.lowers(aten._fft_r2c.default)
def fft_r2c(self: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """The last of `dim` keeps the half that determines the rest, if `onesided`."""
    *others, last = wrapped_all(dim, self.ndim)
    count = prod(self.shape[d] for d in (*others, last))
    if not onesided:
        x = lax.complex(self, lax.full_like(self, 0))
        x = _complex_transform(x, sorted((*others, last)), forward=True)
        return _scaled(x, count, normalization, inverse=False)
    shape = list(self.shape)
    shape[last] = shape[last] // 2 + 1
    if 0 in shape:
        dtype = np.dtype(np.complex128 if self.dtype == np.float64 else np.complex64)
        return lax.full(shape, 0, dtype)
    inner = [*others[: AT_ONCE - 1], last]
    sizes = [self.shape[d] for d in inner]
    x = _transformed(self, inner, lax.FftType.RFFT, sizes)
    x = _complex_transform(x, others[AT_ONCE - 1 :], forward=True)
    return _scaled(x, count, normalization, inverse=False)


@table.lowers(aten._fft_c2r.default)
def fft_c2r(self: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """The inverse of `fft_r2c`: the last of `dim` grows to `last_dim_size`."""
    *others, last = wrapped_all(dim, self.ndim)
    shape = list(self.shape)
    shape[last] = last_dim_size
    if 0 in shape or not self.size:
        return lax.full(shape, 0, jnp.finfo(self.dtype).dtype)
    count = prod(shape[d] for d in (*others, last))
    x = _complex_transform(self, others[AT_ONCE - 1 :], forward=False)
    inner = [*others[: AT_ONCE - 1], last]
    x = _transformed(x, inner, lax.FftType.IRFFT, [shape[d] for d in inner])
    return _scaled(x, count, normalization, inverse=True)
