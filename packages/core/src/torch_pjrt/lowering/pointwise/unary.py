"""Lowerings of ops that compute each element of one tensor on its own.

An op is one row: the overload, the JAX function, and how PyTorch promotes its input. An op that
needs more than a row is a function at the end of this file.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.pointwise.rows import (
    Compute,
    constant,
    operands,
    rounded,
    row,
    select,
    wide_operands,
    wide_row,
)
from torch_pjrt.lowering.promote import Array, Promote
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.unary")


def is_exact(x: Array) -> bool:
    """Whether the elements are integers or bools."""
    return x.dtype.kind in "iub"


def _same_if_exact(compute: Compute) -> Compute:
    return lambda x: x if is_exact(x) else compute(x)


def _same_if_unsigned(compute: Compute) -> Compute:
    return lambda x: x if x.dtype.kind in "ub" else compute(x)


def trunc(x: Array) -> Array:
    """Each float rounded towards 0."""
    return lax.select(lax.lt(x, constant(0, x)), lax.ceil(x), lax.floor(x))


def round_half_even(x: Array) -> Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def isnan(x: Array) -> Array:
    return lax.ne(x, x)


def _false_if_exact(compute: Compute) -> Compute:
    return lambda x: lax.full(x.shape, False) if is_exact(x) else compute(x)


def _isinf(x: Array) -> Array:
    if x.dtype.kind == "c":
        return lax.bitwise_or(_isinf(lax.real(x)), _isinf(lax.imag(x)))
    return lax.eq(lax.abs(x), constant(math.inf, x))


def _sign(x: Array) -> Array:
    """Not `lax.sign`: the sign of nan is 0, and so is that of -0."""
    if is_exact(x):
        return lax.sign(x)
    has_sign = lax.gt(lax.abs(x), constant(0, x))
    return select(has_sign, lax.sign(x), constant(0, x))


def _sgn(x: Array) -> Array:
    """Of a complex number, the one of length 1 in its direction; 0 of 0."""
    if x.dtype.kind != "c":
        return _same_if_bool(_sign)(x)
    length = lax.abs(x)
    zero = lax.eq(length, constant(0, length))
    one = constant(1, length)
    divisor = lax.convert_element_type(select(zero, one, length), x.dtype)
    return select(zero, constant(0, x), lax.div(x, divisor))


def _same_if_bool(compute: Compute) -> Compute:
    return lambda x: x if x.dtype == jnp.bool_ else compute(x)


def signbit(x: Array) -> Array:
    if is_exact(x):
        return lax.lt(x, constant(0, x))
    return jnp.signbit(x)


def _reciprocal(x: Array) -> Array:
    return lax.div(constant(1, x), x)


def _by_parts(compute: Compute, x: Array) -> Array:
    """Both parts of a complex number on their own: a complex product is nan where one is infinite."""
    if x.dtype.kind != "c":
        return compute(x)
    return lax.complex(compute(lax.real(x)), compute(lax.imag(x)))


def magnitude(x: Array) -> Array:
    """Infinite where one part is, whatever the other: as in C."""
    if x.dtype.kind != "c":
        return lax.abs(x)
    length = lax.abs(x)
    return select(_isinf(x), constant(math.inf, length), length)


def log(x: Array) -> Array:
    """The real part is infinite where one part of `x` is, whatever the other: as in C."""
    result = lax.log(x)
    if x.dtype.kind != "c":
        return result
    real = lax.real(result)
    real = select(_isinf(x), constant(math.inf, real), real)
    return lax.complex(real, lax.imag(result))


def _log_by(base: float) -> Compute:
    scaled = lambda part: lax.div(part, constant(math.log(base), part))  # noqa: E731
    return lambda x: _by_parts(scaled, log(x))


def _signed(compute: Compute, *, real: int = 0, imag: int = 0) -> Compute:
    """Of complex numbers, parts of the result have the signs of the parts of `x`: 1, -1 for the opposite.

    XLA looks at where a number is, and not at the sign of a zero, which says on which side of a branch cut.
    """

    def signed(x: Array) -> Array:
        result = compute(x)
        if x.dtype.kind != "c":
            return result
        parts = [lax.real(result), lax.imag(result)]
        for i, (sign, part) in enumerate(((real, lax.real(x)), (imag, lax.imag(x)))):
            if sign:
                parts[i] = jnp.copysign(parts[i], part if sign > 0 else lax.neg(part))
        return lax.complex(*parts)

    return signed


def _times(factor: float) -> Compute:
    return lambda x: lax.mul(x, constant(factor, x))


def _sinc(x: Array) -> Array:
    zero = lax.eq(x, constant(0, x))
    angle = lax.mul(select(zero, constant(1, x), x), constant(math.pi, x))
    return select(zero, constant(1, x), lax.div(lax.sin(angle), angle))


def _exp2(x: Array) -> Array:
    """XLA's is `exp(x * log(2))`, which misses powers of two: whole powers are made apart."""
    if x.dtype.kind == "c":
        return lax.exp(_by_parts(_times(math.log(2)), x))
    if x.dtype not in (np.float32, np.float64):
        return lax.exp2(x)
    whole = lax.floor(x)
    power = _whole_power(whole) if x.dtype == np.float32 else lax.pow(constant(2, x), whole)
    part = lax.exp2(lax.sub(x, whole))
    return select(lax.is_finite(x), lax.mul(part, power), lax.exp2(x))


def _whole_power(x: Array) -> Array:
    """2 to whole numbers of float32, by their bits: infinite from 128 on, 0 below -126."""
    exponent = lax.clamp(constant(-127, x), x, constant(128, x)).astype(np.int32) + 127
    return lax.bitcast_convert_type(lax.shift_left(exponent, np.int32(23)), np.float32)


def _log2(x: Array) -> Array:
    """The exponent, and the logarithm of a rest from 0.7 to 1.4: of powers of two it is exact."""
    plain = _log_by(2)(x)
    if x.dtype == np.float64:
        whole = lax.round(plain, lax.RoundingMethod.TO_NEAREST_EVEN)
        return select(lax.eq(lax.pow(constant(2, x), whole), x), whole, plain)
    if x.dtype != np.float32:
        return plain
    # The bits of the square root of a half are taken off, so that the exponent is that of x / 0.707.
    bits = lax.bitcast_convert_type(x, np.int32)
    exponent = lax.shift_right_arithmetic(bits - np.int32(0x3F3504F3), np.int32(23))
    rest = lax.bitcast_convert_type(bits - lax.shift_left(exponent, np.int32(23)), np.float32)
    normal = (x >= np.finfo(np.float32).tiny) & lax.is_finite(x)
    exact = lax.add(exponent.astype(np.float32), _log_by(2)(select(normal, rest, x)))
    return select(normal, exact, plain)


FLOAT = Promote.INT_TO_FLOAT

#   overload                 computed by
EXACT_TOO = [
    (aten.abs.default,       _same_if_unsigned(magnitude)),
    (aten.ceil.default,      _same_if_exact(lax.ceil)),
    (aten.floor.default,     _same_if_exact(lax.floor)),
    (aten.neg.default,       lax.neg),
    (aten.round.default,     _same_if_exact(round_half_even)),
    (aten.sgn.default,       _sgn),
    (aten.sign.default,      _same_if_bool(_sign)),
    (aten.trunc.default,     _same_if_exact(trunc)),
    (aten.isinf.default,     _false_if_exact(_isinf)),
    (aten.isnan.default,     _false_if_exact(isnan)),
    (aten.isneginf.default,  _false_if_exact(lambda x: lax.eq(x, constant(-math.inf, x)))),
    (aten.isposinf.default,  _false_if_exact(lambda x: lax.eq(x, constant(math.inf, x)))),
    (aten.logical_not.default, lambda x: lax.eq(x, constant(0, x))),
    (aten.relu.default,      lambda x: lax.max(x, constant(0, x))),
    (aten.signbit.default,   signbit),
]  # fmt: skip

ONE_INSTRUCTION = [
    (aten.atan.default,      _signed(lax.atan, real=1, imag=1)),
    (aten.cos.default,       lax.cos),
    (aten.exp.default,       lax.exp),
    (aten.log.default,       log),
    (aten.reciprocal.default, _reciprocal),
    (aten.rsqrt.default,     lax.rsqrt),
    (aten.sigmoid.default,   lax.logistic),
    (aten.sin.default,       lax.sin),
    (aten.sqrt.default,      _signed(lax.sqrt, imag=1)),
    (aten.tan.default,       lax.tan),
    (aten.tanh.default,      lax.tanh),
]  # fmt: skip

SEVERAL_INSTRUCTIONS = [
    (aten.expm1.default,     lax.expm1),
    (aten.log1p.default,     lax.log1p),
    (aten.acos.default,      _signed(lax.acos, imag=-1)),
    (aten.acosh.default,     _signed(lax.acosh, imag=1)),
    (aten.asin.default,      _signed(lax.asin, real=1, imag=1)),
    (aten.asinh.default,     _signed(lax.asinh, real=1, imag=1)),
    (aten.atanh.default,     _signed(lax.atanh, real=1, imag=1)),
    (aten.cosh.default,      lax.cosh),
    (aten.sinh.default,      lax.sinh),
    (aten.deg2rad.default,   _times(math.pi / 180)),
    (aten.exp2.default,      _exp2),
    (aten.frac.default,      lambda x: lax.sub(x, trunc(x))),
    (aten.log10.default,     _log_by(10)),
    (aten.log2.default,      _log2),
    (aten.rad2deg.default,   _times(180 / math.pi)),
    (aten.sinc.default,      _sinc),
]  # fmt: skip

for op, compute in EXACT_TOO:
    table.add(op, row(compute))
for op, compute in ONE_INSTRUCTION:
    table.add(op, row(compute, FLOAT))
for op, compute in SEVERAL_INSTRUCTIONS:
    table.add(op, wide_row(compute, FLOAT))


@table.lowers(aten.round.decimals)
def round_decimals(x: Array, *, decimals: int) -> Array:
    """`x` to so many digits behind the point, or, if negative, before it. Half goes to even."""
    if is_exact(x):
        return x
    (wide,), dtype = wide_operands([x])
    scale = constant(10.0 ** abs(decimals), wide)
    up, down = (lax.mul, lax.div) if decimals >= 0 else (lax.div, lax.mul)
    nearest = round_half_even(up(wide, scale))
    return rounded(down(nearest, scale), dtype)


@table.lowers(aten.nan_to_num.default)
def nan_to_num(x: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    """`x` with nan as 0, and the infinities as the largest finite numbers, unless given."""
    if is_exact(x):
        return x
    if x.dtype.kind == "c":
        return _by_parts(lambda part: nan_to_num(part, nan, posinf, neginf), x)
    limits = jnp.finfo(x.dtype)
    (_, if_nan), _ = operands([x, 0.0 if nan is None else nan])
    (_, if_posinf), _ = operands([x, float(limits.max) if posinf is None else posinf])
    (_, if_neginf), _ = operands([x, float(limits.min) if neginf is None else neginf])
    result = select(isnan(x), if_nan, x)
    result = select(lax.eq(x, constant(math.inf, x)), if_posinf, result)
    return select(lax.eq(x, constant(-math.inf, x)), if_neginf, result)


@table.lowers(aten.frexp.Tensor)
def frexp(x: Array) -> tuple[Array, Array]:
    """Mantissas in [0.5, 1) with their sign, and int32 exponents of 2."""
    mantissa, exponent = jnp.frexp(x)
    return mantissa, lax.convert_element_type(exponent, np.dtype(np.int32))
