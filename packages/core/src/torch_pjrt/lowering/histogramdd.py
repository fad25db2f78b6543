"""Lowerings of histograms over given or computed edges, in one dim or several.

What every rule here may assume and must keep:
    edges    a bin holds its lower edge, the last bin both. Other elements, and nan, are not counted.
    range    None stands for that of the elements; a point is widened by a half on each side.
    weight   what each element counts, else 1.
    density  divides by the total and by each bin's volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.creation import spaced
from torch_pjrt.lowering.dims import INT32
from torch_pjrt.lowering.promote import as_dtype
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array
Range = Sequence[Any] | None

table = LoweringTable("histogramdd")


def _points(x: Array) -> Array:
    """Elements of points: the last dim of `x` are a point's coordinates."""
    return lax.reshape(x, (x.size // max(x.shape[-1], 1), x.shape[-1]))


def _edges(points: Array, bins: Sequence[int], given: Range) -> list[Array]:
    """`bins + 1` numbers a dim, evenly spaced."""
    result: list[Array] = []
    for d, count in enumerate(bins):
        if given is not None:
            low, high = (as_dtype(end, points.dtype) for end in given[2 * d : 2 * d + 2])
        elif points.size:
            low, high = jnp.min(points[:, d]), jnp.max(points[:, d])
        else:
            low, high = as_dtype(0, points.dtype), as_dtype(1, points.dtype)
        is_point = low == high
        low, high = jnp.where(is_point, low - 0.5, low), jnp.where(is_point, high + 0.5, high)
        result.append(spaced(low, high, count + 1, points.dtype))
    return result


def _by_search(x: Array, edges: Array) -> Array:
    return jnp.searchsorted(edges, x, side="right", method="sort") - 1


def _by_division(x: Array, edges: Array) -> Array:
    """As PyTorch in several dims: next to an edge it may be the bin on the other side."""
    low, high = edges[0], edges[-1]
    return as_dtype((x - low) * (len(edges) - 1) / (high - low), INT32)


def _counted(
    points: Array, edges: Sequence[Array], weight: Array | None, density: bool, position_of: Any
) -> Array:
    """The histogram; its dtype is that of the elements."""
    shape = tuple(len(e) - 1 for e in edges)
    n_bins = int(np.prod(shape))
    inside = lax.full((len(points),), True, bool)
    position = lax.full((len(points),), 0, INT32)
    for d, e in enumerate(edges):
        x = points[:, d]
        inside = inside & (x >= e[0]) & (x <= e[-1])
        position = position * shape[d] + jnp.clip(
            as_dtype(position_of(x, e), INT32), 0, shape[d] - 1
        )
    position = jnp.where(inside, position, n_bins)
    if weight is None:
        ones = lax.full(position.shape, 1, INT32)
        flat = lax.full((n_bins,), 0, INT32).at[position].add(ones, mode="drop")
    else:
        each = as_dtype(lax.reshape(weight, position.shape), points.dtype)
        flat = lax.full((n_bins,), 0, points.dtype).at[position].add(each, mode="drop")
    result = lax.reshape(as_dtype(flat, points.dtype), shape)
    if density:
        result = result / jnp.sum(result)
        for d, e in enumerate(edges):
            widths = e[1:] - e[:-1]
            result = result / lax.expand_dims(widths, [i for i in range(len(shape)) if i != d])
    return result


@table.lowers(aten.histogram.bin_ct)
def histogram(
    self: Array,
    bins: int = 100,
    *,
    range: Range = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    points = lax.reshape(self, (self.size, 1))
    (edges,) = _edges(points, [bins], range)
    return _counted(points, [edges], weight, density, _by_search), edges


@table.lowers(aten.histogram.bins_tensor)
def histogram_of_edges(
    self: Array, bins: Array, *, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    points = lax.reshape(self, (self.size, 1))
    return _counted(points, [bins], weight, density, _by_search), bins


@table.lowers(aten._histogramdd_bin_edges.default)
def histogramdd_bin_edges(
    self: Array,
    bins: Sequence[int],
    *,
    range: Range = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, ...]:
    return tuple(_edges(_points(self), bins, range))


@table.lowers(aten._histogramdd_from_bin_cts.default)
def histogramdd_from_bin_counts(
    self: Array,
    bins: Sequence[int],
    *,
    range: Range = None,
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    points = _points(self)
    return _counted(points, _edges(points, bins, range), weight, density, _by_division)


@table.lowers(aten._histogramdd_from_bin_tensors.default)
def histogramdd_from_edges(
    self: Array, bins: Sequence[Array], *, weight: Array | None = None, density: bool = False
) -> Array:
    return _counted(_points(self), bins, weight, density, _by_search)
