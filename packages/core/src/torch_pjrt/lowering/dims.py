"""Dims of a tensor counted from the end, and numbers laid out along one dim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jax import lax

Array = jax.Array

INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)


def wrapped(dim: int, ndim: int) -> int:
    """`dim` counted from the front. A 0-d tensor counts as having one dim, as in PyTorch."""
    return dim % max(ndim, 1)


def wrapped_all(dims: Iterable[int], ndim: int) -> tuple[int, ...]:
    return tuple(wrapped(dim, ndim) for dim in dims)


def at_least_1d(x: Array) -> Array:
    return x if x.ndim else lax.reshape(x, (1,))


def along(shape: Sequence[int], dim: int, dtype: np.dtype = INT32) -> Array:
    """An array of this shape that holds each element's position along `dim`."""
    return lax.broadcasted_iota(dtype, tuple(shape), dim)


def moved_last(x: Array, dim: int) -> Array:
    """`x` with `dim`, counted from the front, as its last dim; the others keep their order."""
    if dim == x.ndim - 1:
        return x
    return lax.transpose(x, (*(d for d in range(x.ndim) if d != dim), dim))


def moved_from_last(x: Array, dim: int) -> Array:
    """The inverse of `moved_last`."""
    if dim == x.ndim - 1:
        return x
    order = list(range(x.ndim - 1))
    order.insert(dim, x.ndim - 1)
    return lax.transpose(x, order)


def cut(x: Array, dim: int, start: int, stop: int) -> Array:
    """The part of `x` from `start` up to `stop` along `dim`."""
    if start == 0 and stop == x.shape[dim]:
        return x
    return lax.slice_in_dim(x, start, stop, axis=dim)
