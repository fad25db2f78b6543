"""Lowerings of sampling an image at the points of a grid, and its backwards.

What every rule here may assume and must keep:
    grid                -1 and 1 are the ends of each dim; its last dim starts with the image's last.
    interpolation_mode  0 linear, 1 nearest, 2 cubic. Each sample is a weighted sum of elements.
    padding_mode        beyond the ends: 0 zeros, 1 the element at the end, 2 the image mirrored.
    align_corners       the ends of a dim are the middles of its first and last elements, not their edges.
    arithmetic          runs in float32 for float16 and bfloat16, and is rounded once at the end.

A backward is the derivative of its forward. At the very end of a dim, and at the mirrors, that is
PyTorch's: 0 where an end holds the point.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from torch_pjrt.lowering.dims import INT32
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.resample import CUBIC as SLOPE
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float

Array = jax.Array

LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2

table = LoweringTable("grid_sample")


def _position(coordinate: Array, size: int, align_corners: bool) -> Array:
    """From [-1, 1] to elements of a dim."""
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _clipped(position: Array, size: int) -> Array:
    inside = jnp.where(position < size - 1, position, size - 1)
    return jnp.where(position > 0, inside, 0)


def _mirrored(position: Array, size: int, align_corners: bool) -> Array:
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return lax.full_like(position, 0)
    distance = position - low
    distance = jnp.where(distance < 0, -distance, distance)
    rest = lax.rem(distance, lax.full_like(distance, span))
    flips = lax.floor(distance / span)
    is_even = lax.rem(flips, lax.full_like(flips, 2)) == 0
    return jnp.where(is_even, rest + low, span - rest + low)


def _padded(position: Array, size: int, padding_mode: int, align_corners: bool) -> Array:
    if padding_mode == REFLECTION:
        position = _mirrored(position, size, align_corners)
    return position if padding_mode == ZEROS else _clipped(position, size)


def _cubic_weights(share: Array) -> list[Array]:
    """Of the four elements around a point that is `share` beyond the second.

    In factors, so that little is lost in their derivatives, which cancel where an image is flat.
    """

    def outer(x: Array) -> Array:
        return SLOPE * x * (1 - x) * (1 - x)

    def inner(x: Array) -> Array:
        return ((SLOPE + 2) * x - (SLOPE + 3)) * x * x + 1

    rest = 1 - share
    return [outer(share), inner(share), inner(rest), outer(rest)]


# An index along a dim and its weight: both of the shape of the points.
Term = tuple[Array, Array]


def _terms(
    position: Array, size: int, mode: int, padding_mode: int, align_corners: bool
) -> list[Term]:
    """The indices along one dim that each point is made of, as floats, and their weights."""
    if mode == CUBIC:
        low = lax.floor(position)
        weights = _cubic_weights(position - low)
        indices = [low + (i - 1) for i in range(4)]
        indices = [_padded(index, size, padding_mode, align_corners) for index in indices]
        return list(zip(indices, weights, strict=True))
    position = _padded(position, size, padding_mode, align_corners)
    if mode == NEAREST:
        index = lax.round(position, lax.RoundingMethod.TO_NEAREST_EVEN)
        return [(index, lax.full_like(position, 1))]
    low = lax.floor(position)
    share = position - low
    return [(low, 1 - share), (low + 1, share)]


def _inside(index: Array, size: int, weight: Array) -> Term:
    """An index in range, with weight 0 where the given one was out of range."""
    holds = (index >= 0) & (index <= size - 1)
    index = lax.convert_element_type(jnp.clip(index, 0, size - 1), INT32)
    return index, jnp.where(holds, weight, 0)


def _at(image: Array, indices: Sequence[Array]) -> Array:
    """The elements of one image, channels first, at indices along each of its dims."""
    return image.at[(slice(None), *indices)].get(mode="promise_in_bounds")


def _sampled(x: Array, grid: Array, mode: int, padding_mode: int, align_corners: bool) -> Array:
    sizes = x.shape[2:]
    by_dim: list[list[Term]] = []
    for d, size in enumerate(sizes):
        position = _position(grid[..., len(sizes) - 1 - d], size, align_corners)
        terms = _terms(position, size, mode, padding_mode, align_corners)
        by_dim.append([_inside(index, size, weight) for index, weight in terms])
    result: Array | None = None
    for terms in itertools.product(*by_dim):
        indices = [index for index, _ in terms]
        weight = terms[0][1]
        for _, other in terms[1:]:
            weight = weight * other
        term = jax.vmap(_at)(x, indices) * lax.expand_dims(weight, (1,))
        result = term if result is None else result + term
    assert result is not None
    return result


@table.lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    input: Float[Array, "images channels *sizes"],
    grid: Float[Array, "images *points dims"],
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Float[Array, "images channels *points"]:
    wide = opmath(input.dtype)
    x, points = as_dtype(input, wide), as_dtype(grid, wide)
    result = _sampled(x, points, interpolation_mode, padding_mode, align_corners)
    return as_dtype(result, input.dtype)


@table.lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    grad_output: Float[Array, "images channels *points"],
    input: Float[Array, "images channels *sizes"],
    grid: Float[Array, "images *points dims"],
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Float[Array, "images channels *sizes"] | None, Float[Array, "images *points dims"]]:
    """The gradient of the image, if wanted, and of the grid, always: so PyTorch."""
    wide = opmath(input.dtype)

    def forward(x: Array, points: Array) -> Array:
        return _sampled(x, points, interpolation_mode, padding_mode, align_corners)

    _, backward = jax.vjp(forward, as_dtype(input, wide), as_dtype(grid, wide))
    grad_input, grad_grid = backward(as_dtype(grad_output, wide))
    kept = as_dtype(grad_input, input.dtype) if output_mask[0] else None
    return kept, as_dtype(grad_grid, grid.dtype)
