"""Lowerings of pooling to a given size, and its backwards.

Window `i` of a dim starts at `floor(i * size / count)` and ends at `ceil((i + 1) * size / count)`.
Where `count` divides `size` the windows are alike and do not overlap: a reshape and a fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import lax

from torch_pjrt.lowering.pool import INT32, INT64, max_pool, running_max, scattered
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.lowering.terms import taken_along
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Integer, Num

Array = jax.Array
Sizes = Sequence[int]

table = LoweringTable("adaptive_pool")


def _bounds(size: int, count: int) -> list[tuple[int, int]]:
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _averaged(x: Array, axis: int, count: int) -> Array:
    size = x.shape[axis]
    if size == count:
        return x
    if count and size % count == 0:
        shape = (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
        return lax.reduce_sum(lax.reshape(x, shape), (axis + 1,)) / (size // count)
    means = [
        lax.expand_dims(lax.reduce_sum(lax.slice_in_dim(x, a, b, axis=axis), (axis,)), (axis,))
        / (b - a)
        for a, b in _bounds(size, count)
    ]
    return lax.concatenate(means, axis)


def _adaptive_avg(x: Array, output_size: Sizes) -> Array:
    for axis, count in enumerate(output_size, x.ndim - len(output_size)):
        x = _averaged(x, axis, count)
    return x


@table.lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool(self: Array, output_size: Sizes) -> Array:
    return as_dtype(_adaptive_avg(as_dtype(self, opmath(self.dtype)), output_size), self.dtype)


def _adaptive_avg_backward(grad_output: Array, self: Array, rank: int) -> Array:
    grad = as_dtype(grad_output, opmath(grad_output.dtype))
    like = jax.ShapeDtypeStruct(self.shape, grad.dtype)
    output_size = grad.shape[-rank:]
    (result,) = jax.linear_transpose(lambda x: _adaptive_avg(x, output_size), like)(grad)
    return as_dtype(result, self.dtype)


@table.lowers(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(grad_output: Array, self: Array) -> Array:
    return _adaptive_avg_backward(grad_output, self, 2)


@table.lowers(aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool3d_backward(grad_output: Array, self: Array) -> Array:
    return _adaptive_avg_backward(grad_output, self, 3)


def _alike(sizes: Sizes, counts: Sizes) -> bool:
    return all(count and size % count == 0 for size, count in zip(sizes, counts, strict=True))


@table.lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(self: Array, output_size: Sizes) -> tuple[Array, Array]:
    """Maxima, and their indices within the plane."""
    rank = len(output_size)
    sizes = self.shape[-rank:]
    if _alike(sizes, output_size):
        kernel = [size // count for size, count in zip(sizes, output_size, strict=True)]
        return max_pool(self, rank, kernel)
    x, positions = self, lax.reshape(lax.iota(INT32, int(np.prod(sizes))), sizes)
    positions = lax.broadcast_in_dim(positions, self.shape, range(self.ndim - rank, self.ndim))
    for axis in reversed(range(self.ndim - rank, self.ndim)):
        count = output_size[axis - self.ndim]
        x, positions = _greatest(x, positions, axis, count)
    return x, as_dtype(positions, INT64)


def _greatest(x: Array, positions: Array, axis: int, count: int) -> tuple[Array, Array]:
    """Windows of unlike length: a short one meets its last element twice, which changes nothing."""
    bounds = _bounds(x.shape[axis], count)
    longest = max((b - a for a, b in bounds), default=1)
    rows = [np.array([min(a + i, b - 1) for a, b in bounds], np.int32) for i in range(longest)]
    pieces = [taken_along(x, axis, row) for row in rows]
    return running_max(pieces, [taken_along(positions, axis, row) for row in rows], INT32)


def _adaptive_max_backward(grad_output: Array, self: Array, indices: Array, rank: int) -> Array:
    grad = as_dtype(grad_output, opmath(grad_output.dtype))
    return as_dtype(scattered(grad, indices, self.shape, rank), self.dtype)


@table.lowers(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(
    grad_output: Num[Array, "*windows"],
    self: Num[Array, "*elements"],
    indices: Integer[Array, "*windows"],
) -> Num[Array, "*elements"]:
    return _adaptive_max_backward(grad_output, self, indices, 2)


@table.lowers(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(
    grad_output: Num[Array, "*windows"],
    self: Num[Array, "*elements"],
    indices: Integer[Array, "*windows"],
) -> Num[Array, "*elements"]:
    return _adaptive_max_backward(grad_output, self, indices, 3)
