"""Lowerings of fractional max pooling (Graham, 2014), whose windows lie at random, and its backwards.

`random_samples` holds one number for each plane and spatial dim; where the windows of a plane lie
follows from it. Indices count within their plane: the first of equals, the last of nans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Integer, Num

Array = jax.Array

table = LoweringTable("fractional pool")


def _positions(sample: Array, size: int, kernel: int, count: int) -> Array:
    """Where the elements of each window lie in its dim: one row for each plane, window after window.

    The last window ends with the dim. Rounding is that of `sample`'s dtype, as PyTorch's is.
    """
    dtype = sample.dtype
    step = np.asarray(size - kernel, dtype) / np.asarray(max(count - 1, 1), dtype)
    numbers = jnp.arange(max(count - 1, 0), dtype=dtype)
    from_sample = lax.expand_dims(sample, (1,))
    starts = ((numbers + from_sample) * step).astype(np.int64)
    starts = starts - (from_sample * step).astype(np.int64)
    last = jnp.full((sample.shape[0], min(count, 1)), size - kernel, np.int64)
    starts = jnp.concatenate([starts, last], 1)
    within = jnp.arange(kernel, dtype=np.int64)
    return (starts[:, :, None] + within).reshape(sample.shape[0], count * kernel)


def _pooled(
    x: Array, kernel: Sequence[int], counts: Sequence[int], samples: Array
) -> tuple[Array, Array]:
    """Maxima and their indices. `samples` has a column for each spatial dim."""
    n = len(kernel)
    sizes = x.shape[-n:]
    planes = x.reshape(math.prod(x.shape[:-n]), *sizes)
    samples = samples.reshape(-1, n)[: len(planes)]  # there may be more of them
    index = jnp.zeros((len(planes), *[1] * n), np.int64)
    for dim in range(n):
        positions = _positions(samples[:, dim], sizes[dim], kernel[dim], counts[dim])
        shape = [1] * (n + 1)
        shape[0], shape[dim + 1] = positions.shape
        positions = positions.reshape(shape)
        planes = jnp.take_along_axis(planes, positions, dim + 1)
        index = index * sizes[dim] + positions
    windows, index = (_by_window(a, kernel, counts) for a in (planes, index))
    is_nan = jnp.isnan(windows)
    last_nan = windows.shape[-1] - 1 - jnp.argmax(is_nan[..., ::-1], -1)
    best = jnp.where(jnp.any(is_nan, -1), last_nan, jnp.argmax(windows, -1))[..., None]
    shape = (*x.shape[:-n], *counts)
    maxima, where = (jnp.take_along_axis(a, best, -1).reshape(shape) for a in (windows, index))
    return maxima, where


def _by_window(x: Array, kernel: Sequence[int], counts: Sequence[int]) -> Array:
    """Elements of one window in the last dim: planes, windows, elements."""
    n = len(kernel)
    split = [s for pair in zip(counts, kernel, strict=True) for s in pair]
    windows = [1 + 2 * d for d in range(n)]
    x = x.reshape(len(x), *split).transpose(0, *windows, *[d + 1 for d in windows])
    return x.reshape(len(x), *counts, math.prod(kernel))


@table.lowers(aten.fractional_max_pool2d.default)
def fractional_max_pool2d(
    self: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
) -> tuple[Array, Array]:
    """The samples of a plane are those of its width and its height, in this order."""
    return _pooled(self, kernel_size, output_size, random_samples[..., ::-1])


@table.lowers(aten.fractional_max_pool3d.default)
def fractional_max_pool3d(
    self: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
) -> tuple[Array, Array]:
    """The samples of a plane are those of its depth, its height and its width, in this order."""
    return _pooled(self, kernel_size, output_size, random_samples)


@table.lowers(
    aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default
)
def fractional_max_pool_backward(
    grad_output: Num[Array, "*windows"],
    self: Num[Array, "*elements"],
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Integer[Array, "*windows"],
) -> Num[Array, "*elements"]:
    """Each gradient goes to the element that was the maximum; windows overlap."""
    n = len(kernel_size)
    n_planes, plane = math.prod(self.shape[:-n]), math.prod(self.shape[-n:])
    windows = (n_planes, math.prod(output_size))
    grads = as_dtype(grad_output, opmath(grad_output.dtype)).reshape(windows)
    rows = jnp.arange(n_planes)[:, None]
    zero = jnp.zeros((n_planes, plane), grads.dtype)
    total = zero.at[rows, indices.reshape(windows)].add(grads)
    return as_dtype(total.reshape(self.shape), self.dtype)
