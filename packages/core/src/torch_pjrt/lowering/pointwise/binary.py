"""Lowerings of arithmetic on two operands, tensors or numbers."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.pointwise.rows import (
    Compute,
    constant,
    filled,
    is_literally,
    operands,
    rounded,
    row,
    select,
    wide_operands,
    wide_row,
)
from torch_pjrt.lowering.pointwise.unary import is_exact, isnan, signbit, trunc
from torch_pjrt.lowering.promote import Array, Promote, is_number
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.binary")

FLOAT = Promote.INT_TO_FLOAT


def _scaled_sum(x: Any, other: Any, alpha: Any, combine: Compute) -> Array:
    if is_literally(alpha, 1):
        return combine(*operands([x, other])[0])
    (a, b), dtype = wide_operands([x, other])
    return rounded(combine(a, _times(cast(cast(alpha, dtype), b.dtype), b)), dtype)


def _times(x: Array, y: Array) -> Array:
    return lax.bitwise_and(x, y) if x.dtype == jnp.bool_ else lax.mul(x, y)


def _plus(x: Array, y: Array) -> Array:
    return lax.bitwise_or(x, y) if x.dtype == jnp.bool_ else lax.add(x, y)


@table.lowers(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, other: Any, alpha: Any = 1) -> Array:
    """`x + alpha * other`; of bools, whether either is True."""
    return _scaled_sum(x, other, alpha, _plus)


@table.lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: Any, other: Any, alpha: Any = 1) -> Array:
    return _scaled_sum(x, other, alpha, lax.sub)


@table.lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(x: Any, other: Any, alpha: Any = 1) -> Array:
    return _scaled_sum(other, x, alpha, lax.sub)


@table.lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(x: Any, other: Any) -> Array:
    """Of half tensors and a number, in float32: the number is not rounded to half first."""
    if not (is_number(x) or is_number(other) or (other.ndim == 0 and x.ndim > 0)):
        return _times(*operands([x, other])[0])
    arrays, dtype = wide_operands([x, other], exact_numbers=True)
    return rounded(_times(*arrays), dtype)


@table.lowers(aten.div.Tensor, aten.div.Scalar)
def div(x: Any, other: Any) -> Array:
    """Of halves in float32: XLA makes `(x / y) / z` a quotient by `y * z`, which halves may not hold."""
    arrays, dtype = wide_operands([x, other], FLOAT, exact_numbers=True)
    return rounded(lax.div(*arrays), dtype)


@table.lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(x: Any, other: Any, *, rounding_mode: str | None) -> Array:
    """`x / other`, rounded towards 0 ("trunc"), downwards ("floor") or not (None)."""
    if rounding_mode is None:
        return div(x, other)
    (a, b), dtype = wide_operands([x, other], exact_numbers=True)
    if rounding_mode == "floor":
        return rounded(_floor_quotient(a, b), dtype)
    quotient = lax.div(a, b)
    if is_exact(a):
        return quotient
    if not (is_number(x) or is_number(other)):
        quotient = rounded(quotient, dtype)  # 5 where two halves give 4.999: as PyTorch's kernel
    return rounded(trunc(quotient), dtype)


@table.lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(x: Any, other: Any) -> Array:
    return div_mode(x, other, rounding_mode="floor")


def _floor_quotient(x: Array, y: Array) -> Array:
    """The quotient that belongs to `_modulo`: `x == y * quotient + modulo`, as in Python.

    Not `floor(x / y)`: the division could round up to the next whole number. A quotient between two whole
    numbers, as large ones are that were rounded, belongs to the lower.
    """
    zero = constant(0, x)
    if is_exact(x):
        quotient, rest = lax.div(x, y), lax.rem(x, y)
        if x.dtype.kind == "u":
            return quotient
        below = lax.bitwise_and(lax.ne(rest, zero), lax.ne(lax.lt(rest, zero), lax.lt(y, zero)))
        return lax.sub(quotient, lax.convert_element_type(below, x.dtype))
    rest, exact, one = lax.rem(x, y), lax.div(x, y), constant(1, x)
    quotient = lax.div(lax.sub(x, rest), y)
    below = lax.bitwise_and(lax.ne(rest, zero), lax.ne(lax.lt(rest, zero), lax.lt(y, zero)))
    quotient = select(below, lax.sub(quotient, one), quotient)
    whole = lax.floor(quotient)
    is_more = lax.gt(lax.sub(quotient, whole), constant(0.5, x))
    quotient = select(is_more, lax.add(whole, one), whole)
    signed_zero = _copysign(lax.full_like(quotient, 0), exact)
    quotient = select(lax.eq(quotient, zero), signed_zero, quotient)
    return select(lax.eq(y, zero), exact, quotient)


def _modulo(x: Array, y: Array) -> Array:
    """The rest with the sign of `y`."""
    rest = lax.rem(x, y)
    if x.dtype.kind == "u":
        return rest
    zero = constant(0, x)
    wrong = lax.bitwise_and(lax.ne(rest, zero), lax.ne(lax.lt(rest, zero), lax.lt(y, zero)))
    return select(wrong, lax.add(rest, y), rest)


def _copysign(x: Array, y: Array) -> Array:
    return select(lax.ne(signbit(x), signbit(y)), lax.neg(x), x)


def _fmax(x: Array, y: Array) -> Array:
    """The larger; of a number and nan, the number."""
    if is_exact(x):
        return lax.max(x, y)
    return select(isnan(x), y, select(isnan(y), x, lax.max(x, y)))


def _fmin(x: Array, y: Array) -> Array:
    if is_exact(x):
        return lax.min(x, y)
    return select(isnan(x), y, select(isnan(y), x, lax.min(x, y)))


def _hypot(x: Array, y: Array) -> Array:
    """sqrt(x**2 + y**2) without overflow; infinite if either is, even beside nan."""
    x, y = lax.abs(x), lax.abs(y)
    large, small = lax.max(x, y), lax.min(x, y)
    zero, one, infinity = (constant(value, x) for value in (0, 1, math.inf))
    ratio = lax.div(small, select(lax.eq(large, zero), one, large))
    length = lax.mul(large, lax.sqrt(lax.add(one, lax.mul(ratio, ratio))))
    infinite = lax.bitwise_or(lax.eq(x, infinity), lax.eq(y, infinity))
    return select(infinite, infinity, length)


def _log_of_sum(base: float) -> Compute:
    """log(base**x + base**y) without overflow."""

    def compute(x: Array, y: Array) -> Array:
        unit = constant(math.log(base), x)
        if x.dtype.kind == "c":
            ahead = lax.ge(lax.real(x), lax.real(y))
            larger, smaller = select(ahead, x, y), select(ahead, y, x)
            power = lax.exp(lax.mul(lax.sub(smaller, larger), unit))
            return lax.add(larger, lax.div(lax.log1p(power), unit))
        larger, distance = lax.max(x, y), lax.neg(lax.abs(lax.sub(x, y)))
        rest = lax.div(lax.log1p(lax.exp(lax.mul(distance, unit))), unit)
        # Two equal infinities have no distance.
        together = lax.add(x, constant(math.log(2) / math.log(base), x))
        return select(lax.eq(x, y), together, lax.add(larger, rest))

    return compute


def _xlogy(x: Array, y: Array) -> Array:
    """x * log(y): 0 where x is 0 unless y is nan."""
    product = lax.mul(x, lax.log(y))
    zero = lax.bitwise_and(lax.eq(x, constant(0, x)), lax.bitwise_not(isnan(y)))
    return select(zero, constant(0, x), product)


def _xlog1py(x: Array, y: Array) -> Array:
    product = lax.mul(x, lax.log1p(y))
    zero = lax.bitwise_and(lax.eq(x, constant(0, x)), lax.bitwise_not(isnan(y)))
    return select(zero, constant(0, x), product)


def _heaviside(x: Array, values: Array) -> Array:
    zero = constant(0, x)
    positive = lax.convert_element_type(lax.gt(x, zero), x.dtype)
    return select(lax.eq(x, zero), values, positive)


def _gcd(x: Array, y: Array) -> Array:
    """By Euclid's rule. The least number of a dtype stays negative, for there is no number of its size."""
    x, y = (lax.abs(z) if z.dtype.kind == "i" else z for z in filled([x, y]))
    zero, one = lax.full_like(x, 0), lax.full_like(x, 1)

    def unfinished(state: tuple[Array, Array]) -> Array:
        return jnp.any(lax.ne(state[0], zero))

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        divisor, number = state
        ended = lax.eq(divisor, zero)
        rest = lax.rem(number, lax.select(ended, one, divisor))
        return lax.select(ended, zero, rest), lax.select(ended, number, divisor)

    return lax.while_loop(unfinished, step, (x, y))[1]


def _lcm(x: Array, y: Array) -> Array:
    """Where the dtype has no such number, its last bits; small dtypes are computed in int32, as in C."""
    x, y = filled([x, y])
    dtype = x.dtype
    divisor = _gcd(x, y)
    divisor = select(lax.eq(divisor, constant(0, x)), lax.full_like(x, 1), divisor)
    if dtype.itemsize < 4:
        x, y, divisor = (lax.convert_element_type(z, np.int32) for z in (x, y, divisor))
    return lax.convert_element_type(lax.abs(lax.mul(lax.div(x, divisor), y)), dtype)


#   overload                        computed by
EXACT = [
    (aten.fmax.default,             _fmax),
    (aten.fmin.default,             _fmin),
    (aten.gcd.default,              _gcd),
    (aten.heaviside.default,        _heaviside),
    (aten.lcm.default,              _lcm),
    (aten.maximum.default,          lax.max),
    (aten.minimum.default,          lax.min),
    (aten.nextafter.default,        lambda x, y: lax.nextafter(*filled([x, y]))),
]  # fmt: skip

ROUNDED = [
    (aten.fmod.Scalar,              lax.rem),
    (aten.fmod.Tensor,              lax.rem),
    (aten.hypot.default,            _hypot),
    (aten.logaddexp.default,        _log_of_sum(math.e)),
    (aten.logaddexp2.default,       _log_of_sum(2)),
    (aten.remainder.Scalar,         _modulo),
    (aten.remainder.Scalar_Tensor,  _modulo),
    (aten.remainder.Tensor,         _modulo),
]  # fmt: skip

ROUNDED_FLOAT = [
    (aten.atan2.default,                    lax.atan2),
    (aten.copysign.Scalar,                  _copysign),
    (aten.copysign.Tensor,                  _copysign),
    (aten.special_xlog1py.default,          _xlog1py),
    (aten.special_xlog1py.other_scalar,     _xlog1py),
    (aten.special_xlog1py.self_scalar,      _xlog1py),
    (aten.xlogy.Scalar_Other,               _xlogy),
    (aten.xlogy.Scalar_Self,                _xlogy),
    (aten.xlogy.Tensor,                     _xlogy),
]  # fmt: skip

for op, compute in EXACT:
    table.add(op, row(compute))
for op, compute in ROUNDED:
    table.add(op, wide_row(compute))
for op, compute in ROUNDED_FLOAT:
    table.add(op, wide_row(compute, FLOAT))


@table.lowers(aten.ldexp.Tensor)
def ldexp(x: Array, other: Array) -> Array:
    """`x * 2**other`. `other` need not be whole."""
    (a, b), dtype = wide_operands([x, other], FLOAT)
    return rounded(lax.mul(a, lax.pow(lax.full_like(b, 2), b)), dtype)


def _int_power(x: Array, exponent: Array) -> Array:
    """By repeated squaring, wrapping around; to a negative exponent only 1 and -1 are not 0."""
    x, exponent = filled([x, exponent])
    one, zero = lax.full_like(x, 1), lax.full_like(x, 0)
    two = constant(2, x)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, square, left = state
        odd = lax.ne(lax.bitwise_and(left, one), zero)
        return (
            lax.select(odd, lax.mul(result, square), result),
            lax.mul(square, square),
            lax.shift_right_logical(left, one),
        )

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return jnp.any(lax.gt(state[2], zero))

    start = (one, x, lax.max(exponent, zero))
    result = lax.while_loop(unfinished, step, start)[0]
    if x.dtype.kind == "u":
        return result
    odd = lax.ne(lax.rem(exponent, two), zero)
    minus_one = lax.neg(one)
    inverse = lax.select(lax.eq(x, one), one, zero)
    sign = lax.select(odd, minus_one, one)
    inverse = lax.select(lax.eq(x, minus_one), sign, inverse)
    return lax.select(lax.lt(exponent, zero), inverse, result)


@table.lowers(aten.pow.Tensor_Tensor)
def pow_tensor(x: Any, exponent: Any) -> Array:
    (a, b), dtype = wide_operands([x, exponent])
    if is_exact(a):
        return _int_power(a, b)
    return rounded(lax.pow(*filled([a, b])), dtype)


@table.lowers(aten.pow.Scalar)
def pow_scalar(x: Any, exponent: Array) -> Array:
    return pow_tensor(x, exponent)


@table.lowers(aten.pow.Tensor_Scalar, static=["exponent"])
def pow_tensor_scalar(x: Array, exponent: complex) -> Array:
    """`x ** exponent`: by products, roots and reciprocals where the exponent is a usual one."""
    (base, power), dtype = wide_operands([x, exponent])
    if base.dtype == np.bool_:  # of a bool to the power of a bool
        return base if exponent else lax.full_like(base, True)
    if exponent in (0, 1, 2, 3):
        return rounded(lax.integer_pow(base, int(exponent.real)), dtype)
    if is_exact(base):
        return lax.integer_pow(base, int(exponent.real))
    if exponent in (-1, -2):
        product = lax.integer_pow(base, -int(exponent.real))
        return rounded(lax.div(constant(1, base), product), dtype)
    if exponent == 0.5:
        return rounded(lax.sqrt(base), dtype)
    if exponent == -0.5:
        return rounded(lax.rsqrt(base), dtype)
    return rounded(lax.pow(base, power), dtype)
