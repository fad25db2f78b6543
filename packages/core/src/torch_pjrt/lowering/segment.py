"""Lowerings of reductions over segments of a dim, and their backward.

What every rule here may assume and must keep:
    lengths  of the segments, which lie one after the other along `axis`; or `offsets`, where each starts
             and the last ends. Dims of the data before `axis` are theirs too.
    initial  what each segment starts from; of an empty one it is the result. Without it, the mean of an
             empty segment is nan, and any other result is the reduction's neutral number.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_pjrt.lowering.dims import INT32, along
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

# PyTorch's other names for the same.
SAME = {"amax": "max", "amin": "min"}
NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}

table = LoweringTable("segment")


def _lengths(lengths: Array | None, offsets: Array | None, axis: int) -> tuple[Array, int]:
    """The lengths, one row for each index before `axis`, and how many segments a row has."""
    if lengths is None:
        assert offsets is not None
        lengths = offsets[..., 1:] - offsets[..., :-1]
    count = lengths.shape[axis]
    return lax.reshape(as_dtype(lengths, INT32), (math.prod(lengths.shape[:axis]), count)), count


def _laid_out(x: Array, axis: int) -> Array:
    """What lies before `axis`, `axis`, and what lies behind it, as one dim each."""
    before, behind = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    return lax.reshape(x, (before, x.shape[axis], behind))


def _segments(lengths: Array, size: int) -> Array:
    """The segment of each element of a row; of those in none, one too many."""
    ends = lax.cumsum(lengths, 1)
    positions = along((len(lengths), size), 1)
    return jax.vmap(lambda end, position: jnp.searchsorted(end, position, side="right"))(
        ends, positions
    )


def _reduced(x: Array, segments: Array, count: int, reduce: str) -> Array:
    functions = {
        "sum": jax.ops.segment_sum,
        "mean": jax.ops.segment_sum,
        "prod": jax.ops.segment_prod,
        "max": jax.ops.segment_max,
        "min": jax.ops.segment_min,
    }

    def one(row: Array, ids: Array) -> Array:
        return functions[reduce](row, ids, count + 1, indices_are_sorted=True)[:count]

    return jax.vmap(one)(x, segments)


def _each(x: Array, segments: Array) -> Array:
    """For each element the number of its segment; any number for those in none."""
    return jax.vmap(lambda row, ids: row.at[ids].get(mode="clip"))(x, segments)


@table.lowers(aten.segment_reduce.default)
def segment_reduce(
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Array:
    axis %= data.ndim
    reduce = SAME.get(reduce, reduce)
    rows, count = _lengths(lengths, offsets, axis)
    x = _laid_out(as_dtype(data, opmath(data.dtype)), axis)
    start = as_dtype(NEUTRAL[reduce] if initial is None else initial, x.dtype)
    result = _reduced(x, _segments(rows, x.shape[1]), count, reduce)
    match reduce:
        case "max":
            result = lax.max(result, lax.full_like(result, start))
        case "min":
            result = lax.min(result, lax.full_like(result, start))
        case "prod":
            result = result * start
        case _:
            result = result + start
    if reduce == "mean":
        sizes = as_dtype(rows, x.dtype)[:, :, None]
        empty = jnp.asarray(math.nan, x.dtype) if initial is None else start
        result = jnp.where(sizes == 0, empty, result / jnp.maximum(sizes, 1))
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    return as_dtype(lax.reshape(result, shape), data.dtype)


@table.lowers(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Array:
    """Equal extremes share the gradient, but only a positive one: so PyTorch, on every device."""
    axis %= data.ndim
    reduce = SAME.get(reduce, reduce)
    rows, count = _lengths(lengths, offsets, axis)
    wide = opmath(data.dtype)
    x = _laid_out(as_dtype(data, wide), axis)
    segments = _segments(rows, x.shape[1])
    grads = _each(_laid_out(as_dtype(grad, wide), axis), segments)
    results = _each(_laid_out(as_dtype(output, wide), axis), segments)
    match reduce:
        case "max" | "min":
            hits = as_dtype((x == results) | (x != x), wide)
            sharing = _each(_reduced(hits, segments, count, "sum"), segments)
            slope = jnp.where(grads > 0, hits / jnp.maximum(sharing, 1), hits)
        case "mean":
            slope = 1 / _each(as_dtype(rows, wide)[:, :, None], segments)
        case "prod":
            slope = _of_product(x, results, segments, count, initial)
        case _:
            slope = lax.full_like(x, 1)
    result = jnp.where(segments[:, :, None] < count, grads * slope, 0)
    return as_dtype(lax.reshape(result, data.shape), data.dtype)


def _of_product(x: Array, results: Array, segments: Array, count: int, initial: Any) -> Array:
    """The product of the other elements, also where an element is 0 or nan."""
    start = as_dtype(1 if initial is None else initial, x.dtype)
    is_odd = (x == 0) | (x != x)
    plain = _reduced(jnp.where(is_odd, 1, x), segments, count, "prod") * start
    odd = _each(_reduced(as_dtype(is_odd, INT32), segments, count, "sum"), segments)
    nans = _each(_reduced(as_dtype(x != x, INT32), segments, count, "sum"), segments)
    other_nans = nans - as_dtype(x != x, INT32)
    several = jnp.where(other_nans > 0, jnp.asarray(math.nan, x.dtype), 0)
    at_odd = jnp.where(odd == 1, _each(plain, segments), several)
    return jnp.where(is_odd, at_odd, results / jnp.where(is_odd, 1, x))
