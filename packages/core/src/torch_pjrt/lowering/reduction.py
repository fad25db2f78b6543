"""Lowerings of ops that fold dimensions away.

What every rule here may assume and must keep:
    dim      None or () stands for all dimensions; a negative one counts from the end; a 0-d tensor
             may be folded along 0 or -1.
    keepdim  True leaves a size-1 dimension where one was folded.
    dtype    None leaves the choice to PyTorch: integers and bools add and multiply up in int64.
Half inputs are folded in float32 and rounded once at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.promote import Array, Promote, computed_in, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("reduction")

Dims = int | Sequence[int] | None
BOOL = np.dtype(np.bool_)
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


def axes(x: Array, dim: Dims) -> tuple[int, ...]:
    """`dim` as sorted numbers from 0 up; all dimensions for None and ().

    >>> x = jnp.zeros((2, 3, 4))
    >>> axes(x, [-1]), axes(x, None)
    ((2,), (0, 1, 2))
    """
    if x.ndim == 0:
        return ()
    if isinstance(dim, int):
        return (dim % x.ndim,)
    return tuple(sorted(d % x.ndim for d in dim)) if dim else tuple(range(x.ndim))


def _fold(fold: Callable[..., Array], x: Array, dim: Dims, keepdim: bool) -> Array:
    folded = axes(x, dim)
    result = fold(x, folded) if folded else x
    return _kept(result, x, folded) if keepdim else result


def _kept(result: Array, x: Array, folded: tuple[int, ...]) -> Array:
    """`result` with a size-1 dimension at each of the folded ones of `x`."""
    return lax.expand_dims(result, folded) if folded else result


def _count(x: Array, dim: Dims) -> int:
    return math.prod(x.shape[axis] for axis in axes(x, dim))


def _sum_dtype(x: Array, dtype: torch.dtype | None) -> np.dtype:
    if dtype is not None:
        return dtypes.to_jax(dtype)
    return INT64 if x.dtype.kind in "iub" else x.dtype


@table.lowers(aten.sum.dim_IntList)
def sum(
    x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    result = _sum_dtype(x, dtype)
    if result == BOOL:
        return _fold(lax.reduce_or, cast(x, BOOL), dim, keepdim)
    wide = cast(cast(x, result), opmath(result))
    return cast(_fold(lax.reduce_sum, wide, dim, keepdim), result)


@table.lowers(aten.sum.default)
def sum_all(x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return sum(x, dtype=dtype)


@table.lowers(aten.nansum.default)
def nansum(
    x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    if x.dtype.kind not in "iub":
        x = lax.select(lax.ne(x, x), lax.full_like(x, 0), x)
    return sum(x, dim, keepdim, dtype=dtype)


@table.lowers(aten.mean.dim)
def mean(
    x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    result = x.dtype if dtype is None else dtypes.to_jax(dtype)
    wide = cast(cast(x, result), opmath(result))
    total = _fold(lax.reduce_sum, wide, dim, keepdim)
    return cast(lax.div(total, cast(_count(x, dim), total.dtype)), result)


@table.lowers(aten.mean.default)
def mean_all(x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return mean(x, dtype=dtype)


@table.lowers(aten.prod.dim_int)
def prod(
    x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    result = _sum_dtype(x, dtype)
    if result == BOOL:
        return _fold(lax.reduce_and, cast(x, BOOL), dim, keepdim)
    wide = cast(cast(x, result), opmath(result))
    return cast(_fold(lax.reduce_prod, wide, dim, keepdim), result)


@table.lowers(aten.prod.default)
def prod_all(x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return prod(x, dtype=dtype)


@table.lowers(aten.amax.default, aten.max.default)
def amax(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    return _fold(lax.reduce_max, x, dim, keepdim)


@table.lowers(aten.amin.default, aten.min.default)
def amin(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    return _fold(lax.reduce_min, x, dim, keepdim)


@table.lowers(aten.aminmax.default)
def aminmax(x: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def _position_dtype(n: int) -> np.dtype:
    """int32 where it can count to `n`: 64-bit integers are slow on many devices."""
    return INT32 if n <= np.iinfo(np.int32).max else INT64


def _extreme(
    x: Array, dim: int, keepdim: bool, better: Callable[[Array, Array], Array], worst: Any
) -> tuple[Array, Array]:
    """The extreme values along `dim` and where the first of each is, in one pass. nan beats all."""
    if x.ndim == 0:
        return x, lax.full((), 0, INT64)
    dim %= x.ndim
    position = lax.broadcasted_iota(_position_dtype(x.shape[dim]), x.shape, dim)

    def pick(first: Any, second: Any) -> tuple[Array, Array]:
        (a, i), (b, j) = first, second
        a_nan, b_nan = lax.ne(a, a), lax.ne(b, b)
        a_wins = lax.bitwise_or(better(a, b), lax.bitwise_and(a_nan, lax.bitwise_not(b_nan)))
        tie = lax.bitwise_or(lax.eq(a, b), lax.bitwise_and(a_nan, b_nan))
        a_wins = lax.bitwise_or(a_wins, lax.bitwise_and(tie, lax.lt(i, j)))
        # A number never beats nan: every comparison with nan is False.
        return lax.select(a_wins, a, b), lax.select(a_wins, i, j)

    starts = (np.asarray(worst, x.dtype), np.asarray(x.shape[dim], position.dtype))
    values, positions = lax.reduce((x, position), starts, pick, (dim,))
    positions = lax.convert_element_type(positions, INT64)
    if keepdim:
        return lax.expand_dims(values, (dim,)), lax.expand_dims(positions, (dim,))
    return values, positions


def _lowest(dtype: np.dtype) -> Any:
    if dtype == BOOL:
        return False
    return -math.inf if jnp.issubdtype(dtype, np.floating) else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    if dtype == BOOL:
        return True
    return math.inf if jnp.issubdtype(dtype, np.floating) else np.iinfo(dtype).max


@table.lowers(aten.max.dim)
def max_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _extreme(x, dim, keepdim, lax.gt, _lowest(x.dtype))


@table.lowers(aten.min.dim)
def min_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _extreme(x, dim, keepdim, lax.lt, _highest(x.dtype))


def _position(find: Callable[..., Array], x: Array, dim: int | None, keepdim: bool) -> Array:
    folded = axes(x, () if dim is None else dim)
    shape = x.shape
    if dim is None:
        x, dim = lax.reshape(x, (x.size,)), 0
    if x.ndim == 0:
        return lax.full((), 0, INT64)
    dim %= x.ndim
    result = lax.convert_element_type(find(x, dim, _position_dtype(x.shape[dim])), INT64)
    if keepdim:
        return lax.reshape(result, [1 if i in folded else n for i, n in enumerate(shape)])
    return result


@table.lowers(aten.argmax.default)
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Where the first maximum is; the first nan if there is one."""
    return _position(lax.argmax, x, dim, keepdim)


@table.lowers(aten.argmin.default)
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _position(lax.argmin, x, dim, keepdim)


def _truth_dtype(x: Array) -> np.dtype:
    """`any` and `all` of uint8 are uint8, for programs from before PyTorch had bools."""
    return x.dtype if x.dtype == np.uint8 else BOOL


@table.lowers(aten.any.dim, aten.any.dims)
def any(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return cast(_fold(lax.reduce_or, cast(x, BOOL), dim, keepdim), _truth_dtype(x))


@table.lowers(aten.all.dim, aten.all.dims)
def all(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return cast(_fold(lax.reduce_and, cast(x, BOOL), dim, keepdim), _truth_dtype(x))


@table.lowers(aten.any.default, aten._is_any_true.default)
def any_all(x: Array) -> Array:
    return any(x)


@table.lowers(aten.all.default, aten._is_all_true.default)
def all_all(x: Array) -> Array:
    return all(x)


@table.lowers(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(x: Array, dim: Dims = None) -> Array:
    return sum(cast(x, BOOL), dim)


def _moments(x: Array, dim: Dims, correction: float | None, keepdim: bool) -> tuple[Array, Array]:
    """The variance and the mean, not yet rounded.

    Squared distances from the mean, summed, over `count - correction` (1 unless given). Not
    `jnp.var`: where that divisor is 0 or less it gives nan, while PyTorch clamps the divisor at 0
    and so gives inf, or nan if the distances are 0 as well.
    """
    wide = cast(x, opmath(x.dtype))
    folded, count = axes(x, dim), _count(x, dim)
    total = lax.reduce_sum(wide, folded) if folded else wide
    center = _kept(lax.div(total, cast(count, wide.dtype)), x, folded)
    distance = lax.sub(wide, center)
    if wide.dtype.kind == "c":
        real, imag = lax.real(distance), lax.imag(distance)
        square = lax.add(lax.mul(real, real), lax.mul(imag, imag))
    else:
        square = lax.mul(distance, distance)
    total = lax.reduce_sum(square, folded) if folded else square
    divisor = max(count - (1 if correction is None else correction), 0)
    variance = lax.div(total, cast(divisor, total.dtype))
    if keepdim:
        return _kept(variance, x, folded), center
    return variance, lax.squeeze(center, folded)


def _real_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


@table.lowers(aten.var.correction, static=["correction"])
def var(
    x: Array,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Array:
    return cast(_moments(x, dim, correction, keepdim)[0], _real_dtype(x.dtype))


@table.lowers(aten.std.correction, static=["correction"])
def std(
    x: Array,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Array:
    return cast(lax.sqrt(_moments(x, dim, correction, keepdim)[0]), _real_dtype(x.dtype))


@table.lowers(aten.var_mean.correction, static=["correction"])
def var_mean(
    x: Array,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Array, Array]:
    variance, center = _moments(x, dim, correction, keepdim)
    return cast(variance, _real_dtype(x.dtype)), cast(center, x.dtype)


@table.lowers(aten.std_mean.correction, static=["correction"])
def std_mean(
    x: Array,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Array, Array]:
    variance, center = _moments(x, dim, correction, keepdim)
    return cast(lax.sqrt(variance), _real_dtype(x.dtype)), cast(center, x.dtype)


@table.lowers(aten.logsumexp.default)
def logsumexp(x: Array, dim: Dims, keepdim: bool = False) -> Array:
    """log(sum(exp(x))) without overflow; -inf of nothing and of -inf alone.

    A complex result is the logarithm's principal value, of one element too.
    """
    dtype = dtypes.to_jax(computed_in(dtypes.to_torch(x.dtype), Promote.INT_TO_FLOAT))
    wide = cast(x, opmath(dtype))
    folded = axes(x, dim)
    if not folded and wide.dtype.kind != "c":
        return cast(wide, dtype)
    largest = lax.reduce_max(lax.real(wide) if wide.dtype.kind == "c" else wide, folded)
    finite = lax.is_finite(largest)
    shift = cast(lax.select(finite, largest, lax.full_like(largest, 0)), wide.dtype)
    shift = lax.expand_dims(shift, folded)
    total = lax.reduce_sum(lax.exp(lax.sub(wide, shift)), folded)
    result = lax.add(lax.log(total), lax.squeeze(shift, folded))
    return cast(_kept(result, x, folded) if keepdim else result, dtype)


def _power_sum(wide: Array, ord: float, folded: tuple[int, ...]) -> Array:
    """Sums of the magnitudes to the power `ord`; of how many are not 0 for `ord` 0."""
    if wide.dtype.kind == "c" and ord == 2:
        real, imag = lax.real(wide), lax.imag(wide)
        powers = lax.add(lax.mul(real, real), lax.mul(imag, imag))
    elif ord == 0:
        powers = cast(cast(wide, BOOL), _real_dtype(wide.dtype))
    elif ord in (1, 2):
        powers = lax.abs(wide) if ord == 1 else lax.mul(wide, wide)
    else:
        powers = lax.abs(wide)
        powers = lax.pow(powers, cast(ord, powers.dtype))
    return lax.reduce_sum(powers, folded) if folded else powers


@table.lowers(aten.linalg_vector_norm.default, static=["ord"])
def linalg_vector_norm(
    x: Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    computed = x.dtype if dtype is None else dtypes.to_jax(dtype)
    wide = cast(cast(x, computed), opmath(computed))
    folded = axes(x, dim)
    if math.isinf(ord):
        extreme = lax.reduce_max if ord > 0 else lax.reduce_min
        result = extreme(lax.abs(wide), folded) if folded else lax.abs(wide)
    elif ord and {x.shape[d] for d in folded} <= {1}:  # a power of it may be infinite
        result = lax.squeeze(lax.abs(wide), folded)
    else:
        result = _power_sum(wide, ord, folded)
        if ord == 2:
            result = lax.sqrt(result)
        elif ord not in (0, 1):
            result = lax.pow(result, cast(1 / ord, result.dtype))
    return cast(_kept(result, x, folded) if keepdim else result, _real_dtype(computed))


@table.lowers(aten.linalg__powsum.default, static=["ord"])
def linalg_powsum(
    x: Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    """`linalg_vector_norm` before the root is taken."""
    computed = x.dtype if dtype is None else dtypes.to_jax(dtype)
    folded = axes(x, dim)
    result = _power_sum(cast(cast(x, computed), opmath(computed)), ord, folded)
    return cast(_kept(result, x, folded) if keepdim else result, _real_dtype(computed))


@table.lowers(
    aten.norm.Scalar,
    aten.norm.ScalarOpt_dtype,
    aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dim_dtype,
    static=["p"],
)
def norm(
    x: Array,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    return linalg_vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)
