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
from torch_pjrt.lowering.pointwise.rows import (
    Compute,
    constant,
    filled,
    rounded,
    select,
    wide_operands,
    wide_row,
)
from torch_pjrt.lowering.pointwise.unary import isnan
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


def zeta(x: Array, q: Array) -> Array:
    """The sum of (q + k)**-x over k from 0 up.

    `lax.zeta` is for positive `q`: terms up to abs(q) are added one by one, for there those below 0
    cancel those above, and what their sum loses is added in the end. As in PyTorch, the result is
    infinite for x = 1 and at the poles, and nan for x < 1 and where a term would be complex.
    """
    x, q = filled([x, q])
    zero, one = constant(0, x), constant(1, x)
    below = lax.le(q, zero)
    pole = lax.bitwise_and(below, lax.eq(q, lax.floor(q)))
    start = lax.select(pole, lax.full_like(q, 1), q)

    def is_near(base: Array) -> Array:
        return lax.le(base, lax.neg(start))

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return lax.reduce_or(is_near(state[0]), tuple(range(q.ndim)))

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        base, total, lost = state
        term = lax.pow(base, lax.neg(x))
        grown = lax.add(total, term)
        added = lax.sub(grown, total)
        slip = lax.add(lax.sub(total, lax.sub(grown, added)), lax.sub(term, added))
        return tuple(
            select(is_near(base), after, before)
            for after, before in (
                (lax.add(base, one), base),
                (grown, total),
                (lax.add(lost, slip), lost),
            )
        )  # type: ignore[return-value]

    nothing = lax.full_like(q, 0)
    base, total, lost = lax.while_loop(unfinished, step, (start, nothing, nothing))
    result = lax.add(total, lax.add(lost, lax.zeta(x, base)))
    complex_term = lax.bitwise_and(below, lax.ne(x, lax.floor(x)))
    result = select(complex_term, constant(math.nan, x), result)
    result = select(pole, constant(math.inf, x), result)
    result = select(lax.lt(x, one), constant(math.nan, x), result)
    return select(lax.eq(x, one), constant(math.inf, x), result)


def _exactly(compute: Compute) -> Compute:
    """In float64, where the device has it: in float32 the sums of `lax` are off by percents from 1e4 on."""

    def of_two(x: Array, y: Array) -> Array:
        wide = np.dtype(np.float64) if dtypes.are_wide() else x.dtype
        result = compute(*(lax.convert_element_type(z, wide) for z in filled([x, y])))
        return lax.convert_element_type(result, x.dtype)

    return of_two


#   overload                                    computed by
SPECIAL = [
    (aten.digamma.default,                      digamma),
    (aten.erf.default,                          lax.erf),
    (aten.erfc.default,                         lax.erfc),
    (aten.erfinv.default,                       lax.erf_inv),
    (aten.i0.default,                           _grown(lax.bessel_i0e)),
    (aten.igamma.default,                       _exactly(lax.igamma)),
    (aten.igammac.default,                      _exactly(lax.igammac)),
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
    factor = constant((-1) ** (n + 1) * math.factorial(n), wide)
    return rounded(lax.mul(factor, zeta(lax.full_like(wide, n + 1), wide)), dtype)


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
