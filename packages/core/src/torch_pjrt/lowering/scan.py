"""Lowerings of ops that fold along one dimension and keep every step on the way.

A 0-d tensor may be scanned along 0 or -1. Half inputs are scanned in float32; each step is rounded,
but not what is carried to the next.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.pointwise.unary import log
from torch_pjrt.lowering.promote import Array, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("scan")

INT64 = np.dtype(np.int64)


def _scanned(scan: Callable[..., Array], x: Array, dim: int, dtype: torch.dtype | None) -> Array:
    result = x.dtype
    if dtype is not None:
        result = dtypes.to_jax(dtype)
    elif x.dtype.kind in "iub":
        result = INT64
    wide = cast(cast(x, result), opmath(result))
    return cast(scan(wide, dim % x.ndim) if x.size and x.ndim else wide, result)


@table.lowers(aten.cumsum.default)
def cumsum(x: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
    return _scanned(lax.cumsum, x, dim, dtype)


@table.lowers(aten.cumprod.default)
def cumprod(x: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
    return _scanned(lax.cumprod, x, dim, dtype)


@table.lowers(aten.logcumsumexp.default, aten._logcumsumexp.default)
def logcumsumexp(x: Array, dim: int) -> Array:
    scan = _log_sums_in_order if x.dtype.kind == "c" else lax.cumlogsumexp
    return _scanned(scan, x, dim, dtypes.to_torch(x.dtype))


def _log_sums_in_order(x: Array, dim: int) -> Array:
    """Element after element, as on CPU: which branch a complex logarithm is on depends on the order."""

    def step(so_far: Array, element: Array) -> tuple[Array, Array]:
        total = _log_of_sum(element, so_far)
        return total, total

    elements = jnp.moveaxis(x, dim, 0)
    nothing = lax.full(elements.shape[1:], -np.inf, x.dtype)
    return jnp.moveaxis(lax.scan(step, nothing, elements)[1], 0, dim)


def _log_of_sum(x: Array, y: Array) -> Array:
    """log(exp(x) + exp(y)), whose imaginary part is that of the larger, not wrapped, and a bit."""
    x_is_less = lax.lt(lax.real(x), lax.real(y))
    less, more = lax.select(x_is_less, x, y), lax.select(x_is_less, y, x)
    total = lax.add(lax.log1p(lax.exp(lax.sub(less, more))), more)
    are_infinite = lax.eq(lax.abs(lax.real(less)), np.array(np.inf, lax.real(x).dtype))
    are_infinite = lax.bitwise_and(lax.eq(lax.real(less), lax.real(more)), are_infinite)
    at_infinity = log(lax.add(lax.exp(less), lax.exp(more)))
    are_negative = lax.lt(lax.real(less), lax.full_like(lax.real(less), 0))
    total = lax.select(are_infinite, lax.select(are_negative, less, at_infinity), total)
    is_nan = lax.bitwise_or(lax.ne(x, x), lax.ne(y, y))
    return lax.select(is_nan, lax.full_like(total, complex(np.nan, np.nan)), total)


def _running(scan: Callable[..., Array], x: Array, dim: int) -> tuple[Array, Array]:
    """The extremes so far, and the last index where each was met. nan, once met, stays."""
    if not (x.size and x.ndim):
        return x, lax.full(x.shape, 0, INT64)
    dim %= x.ndim
    ordered = lax.convert_element_type(x, np.dtype(np.uint8)) if x.dtype == np.bool_ else x
    extremes = scan(ordered, dim)
    met = lax.bitwise_or(lax.eq(ordered, extremes), lax.ne(ordered, ordered))
    position = lax.broadcasted_iota(np.dtype(np.int32), x.shape, dim)
    last = lax.cummax(lax.select(met, position, lax.full_like(position, 0)), dim)
    return cast(extremes, x.dtype), lax.convert_element_type(last, INT64)


@table.lowers(aten.cummax.default)
def cummax(x: Array, dim: int) -> tuple[Array, Array]:
    return _running(lax.cummax, x, dim)


@table.lowers(aten.cummin.default)
def cummin(x: Array, dim: int) -> tuple[Array, Array]:
    return _running(lax.cummin, x, dim)
