"""Lowerings of distances between vectors.

`p` says which: the p-norm of the difference, its largest entry for infinity, and for 0 the number
of entries that differ.
"""

from __future__ import annotations

import math
from math import inf
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import wrapped
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.rearrange import triu_indices
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float

Array = jax.Array

table = LoweringTable("distance")

# From this many vectors on, PyTorch computes Euclidean distances by a matrix product.
MANY = 25


def _norm(x: Array, p: float) -> Array:
    """The p-norm over the last dim."""
    x = lax.abs(x)
    if p == 0:
        return jnp.sum(x != 0, -1, dtype=x.dtype)
    if p == 1:
        return jnp.sum(x, -1)
    if p == 2:
        return lax.sqrt(jnp.sum(x * x, -1))
    if p == inf:
        return jnp.max(x, -1, initial=0)
    return lax.pow(jnp.sum(lax.pow(x, lax.full_like(x, p)), -1), as_dtype(1 / p, x.dtype))


def _differences(x1: Array, x2: Array) -> Array:
    return jnp.expand_dims(x1, -2) - jnp.expand_dims(x2, -3)


@table.lowers(aten._euclidean_dist.default)
def euclidean_dist(
    x1: Float[Array, "*batch1 rows1 width"], x2: Float[Array, "*batch2 rows2 width"]
) -> Float[Array, "*batch rows1 rows2"]:
    """By |x|² - 2xy + |y|², in one matrix product: [-2x, |x|², 1] · [y, 1, |y|²]."""
    square1, square2 = (jnp.sum(x * x, -1, keepdims=True) for x in (x1, x2))
    left = lax.concatenate([-2 * x1, square1, lax.full_like(square1, 1)], x1.ndim - 1)
    right = lax.concatenate([x2, lax.full_like(square2, 1), square2], x2.ndim - 1)
    # The terms nearly cancel where vectors are close: no narrower products than the dtype's own.
    product = jnp.matmul(left, jnp.swapaxes(right, -1, -2), precision=lax.Precision.HIGHEST)
    return lax.sqrt(lax.max(product, lax.full_like(product, 0)))


@table.lowers(aten._cdist_forward.default, static=("p",))
def cdist_forward(
    x1: Float[Array, "*batch1 rows1 width"],
    x2: Float[Array, "*batch2 rows2 width"],
    p: float,
    compute_mode: int | None,
) -> Float[Array, "*batch rows1 rows2"]:
    """Batch dims broadcast. `compute_mode` 1 asks for the matrix product, 2 forbids it."""
    many = x1.shape[-2] > MANY or x2.shape[-2] > MANY
    if p == 2 and x1.shape[-1] and (compute_mode == 1 or (compute_mode in (None, 0) and many)):
        return euclidean_dist(x1, x2)
    return _norm(_differences(x1, x2), p)


def _gain(grad: Array, difference: Array, distance: Array, p: float) -> Array:
    """The gradient of each entry of the difference: 0 at no distance, even where the distance's is NaN."""
    zero = lax.full_like(difference, 0)
    if p == 0:
        return zero
    grad = jnp.expand_dims(grad, -1)
    sign, size = lax.sign(difference), lax.abs(difference)
    if p == 1:
        return grad * sign
    distance = lax.broadcast_in_dim(
        lax.expand_dims(distance, (distance.ndim,)), difference.shape, range(difference.ndim)
    )
    if p == inf:
        return grad * lax.select(lax.eq(size, distance), sign, zero)
    same = lax.eq(distance, zero)
    safe = lax.select(same, lax.full_like(distance, 1), distance)
    if p == 2:
        slope = difference / safe
    else:
        # Below 2 the power has a pole (or no value) for an entry of 0.
        level = lax.eq(size, zero)
        power = lax.full_like(size, p - 1)
        size = lax.select(level, lax.full_like(size, 1), size)
        slope = lax.select(level, zero, sign * lax.pow(size, power) / lax.pow(safe, power))
    return lax.select(same, zero, grad * slope)


@table.lowers(aten._cdist_backward.default, static=("p",))
def cdist_backward(
    grad: Float[Array, "*grad_batch rows1 rows2"],
    x1: Float[Array, "*batch1 rows1 width"],
    x2: Float[Array, "*batch2 rows2 width"],
    p: float,
    cdist: Float[Array, "*batch rows1 rows2"],
) -> Float[Array, "*grad_batch1 rows1 width"]:
    """The gradient of the first argument. Of a `grad` with more batches (`jacrev`) the first are taken."""
    if not cdist.size:
        return lax.full_like(x1, 0)  # as it is: without elements, batch dims are not broadcast
    batch = jnp.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    if grad.shape[:-2] != batch:
        rows = jnp.reshape(grad, (-1, *grad.shape[-2:]))[: math.prod(batch)]
        grad = jnp.reshape(rows, (*batch, *grad.shape[-2:]))
    return jnp.sum(_gain(grad, _differences(x1, x2), cdist, p), -2)


@table.lowers(aten._pdist_forward.default, static=("p",))
def pdist_forward(self: Float[Array, "rows width"], p: float = 2.0) -> Float[Array, " pairs"]:
    """The distances of each row to those after it."""
    first, second = _pairs(self)
    return _norm(first - second, p)


def _pairs(x: Array) -> tuple[Array, Array]:
    positions = triu_indices(x.shape[0], x.shape[0], 1)
    first, second = (jnp.take(x, positions[i], axis=0, mode="clip") for i in (0, 1))
    return first, second


@table.lowers(aten._pdist_backward.default, static=("p",))
def pdist_backward(
    grad: Float[Array, " pairs"],
    self: Float[Array, "rows width"],
    p: float,
    pdist: Float[Array, " pairs"],
) -> Float[Array, "rows width"]:
    positions = triu_indices(self.shape[0], self.shape[0], 1)
    first, second = _pairs(self)
    gain = _gain(grad, first - second, pdist, p)
    return lax.full_like(self, 0).at[positions[0]].add(gain).at[positions[1]].add(-gain)


@table.lowers(aten.renorm.default, static=("p",))
def renorm(self: Array, p: float, dim: int, maxnorm: Any) -> Array:
    """Slices along `dim` whose norm is above `maxnorm` are shrunk to it."""
    dim = wrapped(dim, self.ndim)
    dtype = opmath(self.dtype)
    rows = jnp.moveaxis(lax.convert_element_type(self, dtype), dim, 0)
    norm = _norm(lax.reshape(rows, (rows.shape[0], rows.size // max(rows.shape[0], 1))), p)
    real = np.dtype(norm.dtype)
    limit = as_dtype(maxnorm, real)
    shrink = jnp.where(norm > limit, limit / (norm + as_dtype(1e-7, real)), as_dtype(1, real))
    shape = [self.shape[dim] if d == dim else 1 for d in range(self.ndim)]
    scaled = lax.convert_element_type(self, dtype) * lax.reshape(shrink, shape)
    return lax.convert_element_type(scaled, self.dtype)
