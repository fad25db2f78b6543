"""The regularized incomplete gamma functions, in as many steps for large numbers as for small ones.

`lax` adds up a series whose terms grow in number with the root of `a` where `x` is near it: hours from
1e20 on. There the uniform asymptotic expansion is used; sources: Digital Library of Mathematical Functions,
8.12, and the recurrences of Gil, Segura and Temme (2012).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.pointwise.rows import in_float64
from torch_pjrt.lowering.promote import Array

_LARGE = 200.0  # from there on the expansion holds ...
_NEAR = 0.3  # ... at most so far from a, by its size
_N_TERMS = 7
_N_POWERS = 26
_N_SMALL = 9  # powers of a small distance, see `_excess`
_SMALL = 0.01


@in_float64
def igamma(a: Array, x: Array) -> Array:
    """The share of gamma(a)'s integral that lies below `x`."""
    return _computed(a, x, lax.igamma, below=True)


@in_float64
def igammac(a: Array, x: Array) -> Array:
    """The share that lies above `x`."""
    return _computed(a, x, lax.igammac, below=False)


def _computed(
    a: Array, x: Array, by_steps: Callable[[Array, Array], Array], *, below: bool
) -> Array:
    """Of float64, if possible: in float32 the sums of `lax` are off by percents from 1e4 on."""
    distance = (x - a) / a
    near = (a > _LARGE) & (lax.abs(distance) < _NEAR) & (a < np.inf)
    one = lax.full_like(a, 1)
    expanded = _expanded(jnp.where(near, a, 1), jnp.where(near, distance, 0), below=below)
    # What has no integral; what is all of it, or nothing, whatever the other number is.
    both_infinite = (a == np.inf) & (x == np.inf)
    outside = (a < 0) | (x < 0) | ((a == 0) & ~(x > 0)) | both_infinite
    tiny = np.finfo(a.dtype).tiny * 2**20  # so little moves nothing below
    whole, nothing = ((a < tiny) & (x > 0)) | (x == np.inf), (x == 0) | (a == np.inf)
    settled = near | outside | whole | nothing
    result = by_steps(jnp.where(settled, one, a), jnp.where(settled, one, x))
    result = jnp.where(near, expanded, result)
    result = jnp.where(whole, 1.0 if below else 0.0, result)
    result = jnp.where(nothing, 0.0 if below else 1.0, result)
    return jnp.where(outside, np.nan, result)


def _expanded(a: Array, distance: Array, *, below: bool) -> Array:
    """By powers of 1 / a and of `eta`, half of whose square is `distance - log(1 + distance)`."""
    sign = -1 if below else 1
    square = 2 * _excess(distance)
    eta = lax.sign(distance) * lax.sqrt(square)
    total = lax.full_like(a, 0)
    for powers in reversed(_coefficients()):
        of_eta = lax.full_like(a, 0)
        for coefficient in reversed(powers):
            of_eta = of_eta * eta + coefficient
        total = total / a + of_eta
    rest = lax.exp(-0.5 * a * square) / lax.sqrt(2 * math.pi * a) * total
    return 0.5 * lax.erfc(sign * eta * lax.sqrt(a / 2)) + sign * rest


def _excess(x: Array) -> Array:
    """x - log(1 + x), which a small `x` would lose in rounding."""
    series = lax.full_like(x, 0)
    for n in range(_N_SMALL + 1, 1, -1):
        series = series * -x + 1 / n
    return jnp.where(lax.abs(x) < _SMALL, series * x * x, x - lax.log1p(x))


@functools.cache
def _coefficients() -> list[list[float]]:
    """Of each power of 1 / a, those of the powers of eta."""
    n = _N_POWERS + 2 * _N_TERMS
    # The distance as a series in eta: 1, 1/3, 1/36, ...
    alphas = [Fraction(0), Fraction(1)]
    for k in range(2, n + 3):
        products = sum((j * alphas[j] * alphas[k - j + 1] for j in range(2, k)), Fraction(0))
        alphas.append((alphas[k - 1] - products) / (k + 1))
    first = [Fraction(-1, 3), *((k + 2) * alphas[k + 2] for k in range(1, n + 1))]
    rows = [first]
    for k in range(1, _N_TERMS):
        before, stirling = rows[-1], (-1) ** k * _stirling(alphas, k)
        rows.append([stirling * first[i] + (i + 2) * before[i + 2] for i in range(len(before) - 2)])
    return [[float(x) for x in row[:_N_POWERS]] for row in rows]


def _stirling(alphas: list[Fraction], k: int) -> Fraction:
    """Of Stirling's series for the gamma function, the coefficient of the `k`-th power: 1/12, 1/288, ..."""
    odd = math.prod(range(1, 2 * k + 2, 2))
    return odd * alphas[2 * k + 1]
