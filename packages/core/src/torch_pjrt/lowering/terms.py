"""Weighted sums of elements along a dim, which ones and how much each counts being known beforehand.

What resampling is made of. Bytes are summed in integers, as the CPU and Pillow do.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from torch_pjrt.lowering.promote import as_dtype

Array = jax.Array
# Of a dim: the elements that each result is made of, and their weights, one row a term.
Terms = tuple[np.ndarray, np.ndarray]

MOST_BITS = 22  # of a byte's integer weights


def along_terms(x: Array, axis: int, positions: np.ndarray, weights: np.ndarray) -> Array:
    if len(positions) == 1 and (weights == 1).all():
        return _repeated(x, axis, positions[0])
    result: Array | None = None
    for position, weight in zip(positions, weights, strict=True):
        taken = taken_along(x, axis, position)
        term = taken * lax.broadcast_in_dim(weight.astype(x.dtype), taken.shape, (axis,))
        result = term if result is None else result + term
    assert result is not None
    return result


def _repeated(x: Array, axis: int, positions: np.ndarray) -> Array:
    """Elements along a dim, by broadcasting where each is repeated equally often."""
    size, count = x.shape[axis], len(positions)
    times = count // size if size else 0
    if times and np.array_equal(positions, np.arange(size).repeat(times)):
        if times == 1:
            return x
        shape = (*x.shape[: axis + 1], times, *x.shape[axis + 1 :])
        x = lax.broadcast_in_dim(x, shape, [d for d in range(len(shape)) if d != axis + 1])
        return lax.reshape(x, (*shape[:axis], count, *shape[axis + 2 :]))
    return taken_along(x, axis, positions)


def taken_along(x: Array, axis: int, positions: np.ndarray) -> Array:
    """Elements along a dim: a slice where they are evenly spaced, else a gather."""
    steps = np.diff(positions)
    if len(positions) == 1 or (len(positions) and steps[0] > 0 and (steps == steps[0]).all()):
        start, stop = int(positions[0]), int(positions[-1]) + 1
        return lax.slice_in_dim(x, start, stop, int(steps[0]) if len(steps) else 1, axis)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(d for d in range(x.ndim) if d != axis),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
    )
    sizes = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(x, positions.astype(np.int32)[:, None], numbers, sizes, mode=mode)


def terms_of(weights: np.ndarray) -> Terms:
    """The weights without most of their zeros: the few elements that each result is made of."""
    length = weights.shape[1]
    used = weights != 0
    n_terms = max(int(used.sum(1).max(initial=0)), 1)
    # The used ones first, in their order.
    positions = np.argsort(~used, axis=1, kind="stable")[:, :n_terms]
    taken = np.take_along_axis(weights, positions, 1)
    spare = np.where(taken.any(1), positions[:, 0], 0)[:, None]
    positions = np.where(taken != 0, positions, np.minimum(spare, length - 1))
    return positions.T.astype(np.int32), taken.T


def _whole(weights: np.ndarray) -> tuple[np.ndarray, int]:
    """Weights as 16-bit integers, and how many of their bits are behind the point."""
    largest, bits = float(weights.max(initial=0)), 0
    while bits < MOST_BITS and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    return np.trunc(weights * (1 << bits) + np.where(weights < 0, -0.5, 0.5)), bits


def bytes_along(x: Array, axis: int, weights: np.ndarray) -> Array:
    """Of bytes; `weights` has a row for each result, a column for each element."""
    whole, bits = _whole(weights)
    positions, taken = terms_of(whole)
    total = along_terms(as_dtype(x, np.dtype(np.int32)), axis, positions, taken.astype(np.int32))
    half = np.int32(1 << (bits - 1) if bits else 0)
    rounded = lax.shift_right_arithmetic(total + half, np.int32(bits))
    return as_dtype(lax.clamp(np.int32(0), rounded, np.int32(255)), x.dtype)
