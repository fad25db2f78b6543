"""Lowerings of Bessel functions, of the Airy function, and of the scaled error function.

Each is a few approximations by rational functions or Chebyshev series, one for each part of the line,
with the coefficients of `cephes.py`. Integers and bools become floats first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax

from torch_pjrt.lowering.pointwise import cephes
from torch_pjrt.lowering.pointwise.rows import Compute, wide_row
from torch_pjrt.lowering.promote import Array, Promote
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.bessel")

Coefficients = Sequence[float]


def polynomial(x: Array, coefficients: Coefficients) -> Array:
    """By Horner's rule, the highest power first."""
    result = lax.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _ratio(x: Array, above: Coefficients, below: Coefficients) -> Array:
    return polynomial(x, above) / polynomial(x, below)


def _chebyshev(x: Array, coefficients: Coefficients) -> Array:
    """A Chebyshev series by Clenshaw's rule, for the argument x / 2; the constant counts half."""
    current, before, earlier = lax.full_like(x, coefficients[0]), lax.full_like(x, 0), None
    for coefficient in coefficients[1:]:
        earlier, before = before, current
        current = x * before - earlier + coefficient
    assert earlier is not None
    return 0.5 * (current - earlier)


# First and second kind


def _wave(x: Array, order: int) -> tuple[Array, Array]:
    """Both kinds at 5 and beyond: the waves of a falling amplitude."""
    cosine, sine = (
        ((cephes.COSINE0_ABOVE, cephes.COSINE0_BELOW), (cephes.SINE0_ABOVE, cephes.SINE0_BELOW)),
        ((cephes.COSINE1_ABOVE, cephes.COSINE1_BELOW), (cephes.SINE1_ABOVE, cephes.SINE1_BELOW)),
    )[order]
    inverse = 5 / x
    square = inverse * inverse
    p, q = _ratio(square, *cosine), inverse * _ratio(square, *sine)
    phase = x - (2 * order + 1) * math.pi / 4
    falling = math.sqrt(2 / math.pi) / lax.sqrt(x)
    cos, sin = lax.cos(phase), lax.sin(phase)
    return (p * cos - q * sin) * falling, (p * sin + q * cos) * falling


def _near(x: Array, above: Coefficients, below: Coefficients, zeros: Coefficients) -> Array:
    square = x * x
    return (square - zeros[0]) * (square - zeros[1]) * _ratio(square, above, below)


def _j0_near(x: Array) -> Array:
    near = _near(x, cephes.J0_NEAR_ABOVE, cephes.J0_NEAR_BELOW, cephes.J0_SQUARED_ZEROS)
    return jnp.where(x < 1e-5, 1 - x * x / 4, near)


def _j1_near(x: Array) -> Array:
    return x * _near(x, cephes.J1_NEAR_ABOVE, cephes.J1_NEAR_BELOW, cephes.J1_SQUARED_ZEROS)


def _split(x: Array, end: float) -> tuple[Array, Array, Array]:
    """Whether `x` is at most `end`, and an `x` that is for either part of the line."""
    is_near = ~(x > end)
    return is_near, jnp.where(is_near, x, end), jnp.where(is_near, end, x)


def bessel_j0(x: Array) -> Array:
    is_near, near, far = _split(lax.abs(x), 5)
    return jnp.where(is_near, _j0_near(near), _wave(far, 0)[0])


def bessel_j1(x: Array) -> Array:
    is_near, near, far = _split(lax.abs(x), 5)
    result = jnp.where(is_near, _j1_near(near), _wave(far, 1)[0])
    return jnp.where(x < 0, -result, result)


def _second_kind(x: Array, near: Callable[[Array], Array], order: int) -> Array:
    is_near, low, far = _split(x, 5)
    inside = jnp.where(low > 0, low, 1)
    result = jnp.where(is_near, near(inside), _wave(far, order)[1])
    return jnp.where(x > 0, result, jnp.where(x == 0, -math.inf, math.nan))


def bessel_y0(x: Array) -> Array:
    def near(x: Array) -> Array:
        smooth = _ratio(x * x, cephes.Y0_NEAR_ABOVE, cephes.Y0_NEAR_BELOW)
        return smooth + 2 / math.pi * lax.log(x) * _j0_near(x)

    return _second_kind(x, near, 0)


def bessel_y1(x: Array) -> Array:
    def near(x: Array) -> Array:
        smooth = x * _ratio(x * x, cephes.Y1_NEAR_ABOVE, cephes.Y1_NEAR_BELOW)
        return smooth + 2 / math.pi * (_j1_near(x) * lax.log(x) - 1 / x)

    return _second_kind(x, near, 1)


# Modified, second kind


def _scaled_k(near: Compute, series: Coefficients) -> Compute:
    """exp(x) times the function: `near` computes the function itself, up to 2."""

    def compute(x: Array) -> Array:
        is_near, low, far = _split(x, 2)
        inside = jnp.where(low > 0, low, 1)
        beyond = _chebyshev(8 / far - 2, series) / lax.sqrt(far)
        result = jnp.where(is_near, near(inside) * lax.exp(inside), beyond)
        return _at_least_0(x, result)

    return compute


def _plain_k(near: Compute, series: Coefficients) -> Compute:
    def compute(x: Array) -> Array:
        is_near, low, far = _split(x, 2)
        inside = jnp.where(low > 0, low, 1)
        beyond = lax.exp(-far) * _chebyshev(8 / far - 2, series) / lax.sqrt(far)
        return _at_least_0(x, jnp.where(is_near, near(inside), beyond))

    return compute


def _at_least_0(x: Array, result: Array) -> Array:
    return jnp.where(x > 0, result, jnp.where(x == 0, math.inf, math.nan))


def _log_of_half(x: Array) -> Array:
    """Not of half of `x` where XLA takes that for 0."""
    return jnp.where(x < 1, lax.log(x) - math.log(2), lax.log(0.5 * x))


def _k0_near(x: Array) -> Array:
    i0 = lax.exp(x) * lax.bessel_i0e(x)
    return _chebyshev(x * x - 2, cephes.K0_NEAR) - _log_of_half(x) * i0


def _k1_near(x: Array) -> Array:
    i1 = lax.exp(x) * lax.bessel_i1e(x)
    return _chebyshev(x * x - 2, cephes.K1_NEAR) / x + _log_of_half(x) * i1


# Airy

AIRY_AT_0 = 0.355028053887817239260
AIRY_SLOPE_AT_0 = 0.258819403792806798405
AIRY_END = 103.892  # it is 0 beyond


def _power_series(first: int, n_terms: int = 16) -> Coefficients:
    """In x**3: each coefficient is the one before over (3k - 1 + first) * (3k + first)."""
    terms = [1.0]
    for k in range(1, n_terms):
        terms.append(terms[-1] / ((3 * k - 1 + first) * (3 * k + first)))
    return terms[::-1]


def airy_ai(x: Array) -> Array:
    """Waves below -2.09, a power series up to 2.09, decay beyond. As in PyTorch, nan at infinity."""
    low = jnp.minimum(x, -2.09)
    root = lax.sqrt(-low)
    zeta = -2 * low * root / 3
    inverse = 1 / zeta
    square = inverse * inverse
    phase = zeta + math.pi / 4
    sine = 1 + square * _ratio(square, cephes.AIRY_SINE_ABOVE, cephes.AIRY_SINE_BELOW)
    cosine = inverse * _ratio(square, cephes.AIRY_COSINE_ABOVE, cephes.AIRY_COSINE_BELOW)
    waves = (lax.sin(phase) * sine - lax.cos(phase) * cosine) / (
        math.sqrt(math.pi) * lax.sqrt(root)
    )

    high = jnp.clip(x, 2.09, AIRY_END)
    root = lax.sqrt(high)
    zeta = 2 * high * root / 3
    decay = _ratio(1 / zeta, cephes.AIRY_DECAY_ABOVE, cephes.AIRY_DECAY_BELOW)
    decay = decay / (math.sqrt(math.pi) * 2 * lax.sqrt(root) * lax.exp(zeta))

    middle = jnp.clip(x, -2.09, 2.09)
    cube = middle * middle * middle
    near = AIRY_AT_0 * polynomial(cube, _power_series(0))
    near = near - AIRY_SLOPE_AT_0 * middle * polynomial(cube, _power_series(1))

    result = jnp.where(x < -2.09, waves, jnp.where(x >= 2.09, decay, near))
    result = jnp.where(x > AIRY_END, 0, result)
    return jnp.where(lax.abs(x) == math.inf, math.nan, result)


def erfcx(x: Array) -> Array:
    """exp(x**2) * erfc(x). Of a negative number it is 2 * exp(x**2) less that of its opposite."""
    size = lax.abs(x)
    low = jnp.minimum(size, 1)
    near = _ratio(jnp.clip(size, 1, 8), cephes.ERFCX_NEAR_ABOVE, cephes.ERFCX_NEAR_BELOW)
    inverse = 1 / jnp.maximum(size, 8)
    # The ratio of the far part, by powers of 1 / x, so that none overflows.
    far = inverse * _ratio(inverse, cephes.ERFCX_FAR_ABOVE[::-1], cephes.ERFCX_FAR_BELOW[::-1])
    result = jnp.where(size < 8, near, far)
    result = jnp.where(size < 1, lax.exp(low * low) * lax.erfc(low), result)
    return jnp.where(x < 0, 2 * lax.exp(x * x) - result, result)


#   overload                                          computed by
BESSEL = [
    (aten.special_airy_ai.default,                    airy_ai),
    (aten.special_bessel_j0.default,                  bessel_j0),
    (aten.special_bessel_j1.default,                  bessel_j1),
    (aten.special_bessel_y0.default,                  bessel_y0),
    (aten.special_bessel_y1.default,                  bessel_y1),
    (aten.special_erfcx.default,                      erfcx),
    (aten.special_modified_bessel_k0.default,         _plain_k(_k0_near, cephes.K0_FAR)),
    (aten.special_modified_bessel_k1.default,         _plain_k(_k1_near, cephes.K1_FAR)),
    (aten.special_scaled_modified_bessel_k0.default,  _scaled_k(_k0_near, cephes.K0_FAR)),
    (aten.special_scaled_modified_bessel_k1.default,  _scaled_k(_k1_near, cephes.K1_FAR)),
]  # fmt: skip

for op, compute in BESSEL:
    table.add(op, wide_row(compute, Promote.INT_TO_FLOAT))
