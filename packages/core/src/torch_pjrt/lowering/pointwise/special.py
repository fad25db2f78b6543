"""Lowerings of special functions.

Integers and bools become floats first; half inputs are computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.pointwise.incomplete_gamma import igamma, igammac
from torch_pjrt.lowering.pointwise.rows import (
    Compute,
    constant,
    rounded,
    select,
    wide_operands,
    wide_row,
)
from torch_pjrt.lowering.pointwise.unary import isnan
from torch_pjrt.lowering.pointwise.zeta import zeta
from torch_pjrt.lowering.promote import Array, Promote
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.special")

FLOAT = Promote.INT_TO_FLOAT


def _grown(scaled: Compute) -> Compute:
    """A function from the one that is scaled by exp(-abs(x))."""
    return lambda x: lax.mul(lax.exp(lax.abs(x)), scaled(x))


def digamma(x: Array) -> Array:
    """Not `lax.digamma`: its pole at 0 is infinite, with the sign opposite to that of the 0."""
    zero = constant(0, x)
    pole = lax.neg(lax.div(constant(1, x), x))
    return select(lax.eq(x, zero), pole, lax.digamma(x))


def _entropy(x: Array) -> Array:
    """-x * log(x): 0 of 0, -inf below."""
    zero = constant(0, x)
    inside = lax.neg(lax.mul(x, lax.log(x)))
    outside = select(lax.eq(x, zero), zero, constant(-math.inf, x))
    return select(lax.bitwise_or(lax.gt(x, zero), isnan(x)), inside, outside)


def _spherical_bessel_j0(x: Array) -> Array:
    """sin(x) / x, by its series near 0."""
    square = lax.mul(x, x)
    series = constant(1, x)
    for n in (110, 72, 42, 20, 6):
        series = lax.sub(constant(1, x), lax.div(lax.mul(square, series), constant(n, x)))
    near = lax.lt(lax.abs(x), constant(0.5, x))
    infinite = lax.eq(lax.abs(x), constant(math.inf, x))
    away = lax.div(lax.sin(x), select(near, constant(1, x), x))
    return select(infinite, constant(0, x), select(near, series, away))


#   overload                                    computed by
SPECIAL = [
    (aten.digamma.default,                      digamma),
    (aten.erf.default,                          lax.erf),
    (aten.erfc.default,                         lax.erfc),
    (aten.erfinv.default,                       lax.erf_inv),
    (aten.i0.default,                           _grown(lax.bessel_i0e)),
    (aten.igamma.default,                       igamma),
    (aten.igammac.default,                      igammac),
    (aten.lgamma.default,                       lax.lgamma),
    (aten.special_entr.default,                 _entropy),
    (aten.special_i0e.default,                  lax.bessel_i0e),
    (aten.special_i1.default,                   _grown(lax.bessel_i1e)),
    (aten.special_i1e.default,                  lax.bessel_i1e),
    (aten.special_log_ndtr.default,             jax.scipy.special.log_ndtr),
    (aten.special_modified_bessel_i0.default,   _grown(lax.bessel_i0e)),
    (aten.special_modified_bessel_i1.default,   _grown(lax.bessel_i1e)),
    (aten.special_ndtri.default,                jax.scipy.special.ndtri),
    (aten.special_spherical_bessel_j0.default,  _spherical_bessel_j0),
    (aten.special_zeta.default,                 zeta),
    (aten.special_zeta.other_scalar,            zeta),
    (aten.special_zeta.self_scalar,             zeta),
]  # fmt: skip

for op, compute in SPECIAL:
    table.add(op, wide_row(compute, FLOAT))


@table.lowers(aten.polygamma.default)
def polygamma(n: int, x: Array) -> Array:
    """The derivative of order `n` of `digamma`."""
    (wide,), dtype = wide_operands([x], FLOAT)
    if n == 0:
        return rounded(digamma(wide), dtype)
    sums = zeta(lax.full_like(wide, n + 1), wide)
    if n == 1:
        sums = select(lax.eq(wide, constant(math.inf, wide)), constant(0, wide), sums)
    if dtypes.are_wide():  # where factorials do not overflow as early
        sums = lax.convert_element_type(sums, np.float64)
    factor = math.factorial(n) if n < _OVERFLOWS else math.inf
    return rounded(lax.mul(constant(-factor if n % 2 == 0 else factor, sums), sums), dtype)


_OVERFLOWS = 171  # the first number whose factorial is no float


def _within(x: Array, eps: Any) -> tuple[Array, Array]:
    """The numbers `eps` away from 0 and from 1."""
    low = cast(eps, x.dtype)
    return low, lax.sub(constant(1, x), low)


@table.lowers(aten.logit.default)
def logit(x: Array, eps: Any = None) -> Array:
    """log(x / (1 - x)), of `x` at least `eps` away from 0 and 1 if that is given."""
    (wide,), dtype = wide_operands([x], FLOAT)
    if eps is not None:
        low, high = _within(wide, eps)
        wide = lax.min(lax.max(wide, low), high)
    odds = lax.div(wide, lax.sub(constant(1, wide), wide))
    return rounded(lax.log(odds), dtype)


@table.lowers(aten.logit_backward.default)
def logit_backward(grad: Array, x: Array, eps: Any = None) -> Array:
    """0 where `x` was moved by `eps`; nan outside of [0, 1] where there is no `eps`."""
    (g, wide), dtype = wide_operands([grad, x])
    low, high = _within(wide, 0 if eps is None else eps)
    outside = lax.bitwise_or(lax.lt(wide, low), lax.gt(wide, high))
    slope = lax.div(g, lax.mul(wide, lax.sub(constant(1, wide), wide)))
    return rounded(select(outside, constant(math.nan if eps is None else 0, wide), slope), dtype)
