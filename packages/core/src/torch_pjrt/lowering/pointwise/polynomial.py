"""Lowerings of the orthogonal polynomials.

A family is a row: its polynomial of degree 1, and how one of degree k follows from the two before.
Degree 0 is 1 everywhere, and a negative degree gives 0. Degrees are cut to integers; an infinite one,
or nan, counts as negative. Inside of (-1, 1) a Chebyshev polynomial of high degree is computed by its
trigonometric form, as in PyTorch. Source: Digital Library of Mathematical Functions, 18.5 and 18.9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.pointwise.rows import filled, rounded, wide_operands
from torch_pjrt.lowering.pointwise.unary import isnan, trunc
from torch_pjrt.lowering.promote import Array, Promote
from torch_pjrt.lowering.table import LoweringTable, Rule
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.polynomial")

First = Callable[[Array], Array]
# x, the degree, and the polynomials of the degree before and of that before it.
Following = Callable[[Array, Array, Array, Array], Array]
# x, the degree.
Known = Callable[[Array, Array], Array]
HIGHEST_HERMITE = {4: 128, 8: 512}  # by item size


def _whole(n: Array) -> Array:
    return jnp.where(lax.abs(n) < 2.0**63, trunc(n), -1)


def _sign(n: Array) -> Array:
    return jnp.where(lax.rem(n, lax.full_like(n, 2)) == 0, 1, -1).astype(n.dtype)


def _counted(n: Array) -> Array:
    """The same degrees as integers; where none is so large, the greatest that has a next one."""
    kind = np.dtype(np.int64 if dtypes.are_wide() else np.int32)
    most = 2.0**63 if kind.itemsize == 8 else 2.0**31 - 256
    return lax.convert_element_type(jnp.where(n < most, n, most / 2), kind)


def recurred(x: Array, n: Array, first: First, following: Following) -> Array:
    """The polynomial of degree `n`, an integer below 2 for those that need no step.

    The degrees are counted in integers: past 2**24 float32 has no number for the next one.
    """
    degree = _counted(n)

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        k, current, _ = state
        return jnp.any((k <= degree) & ~isnan(current))

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, current, before = state
        goes_on = (k <= degree) & ~isnan(current)
        higher = following(x, lax.convert_element_type(k, x.dtype), current, before)
        return k + 1, lax.select(goes_on, higher, current), lax.select(goes_on, current, before)

    start = jnp.asarray(2, degree.dtype), first(x), lax.full_like(x, 1)
    _, current, _ = lax.while_loop(unfinished, step, start)
    return jnp.where(n > 0, current, jnp.where(n == 0, 1, 0)).astype(x.dtype)


# Chebyshev's four kinds


@dataclass(frozen=True)
class Chebyshev:
    """One kind.

    first       of degree 1.
    turned      by the angle whose cosine is x, inside of (-1, 1).
    at_one, at_minus_one    what it is at the ends, by degree.
    flat        whether the angle is too near an end for `turned`: a function of half the angle.
    """

    first: First
    turned: Known
    at_one: First
    at_minus_one: First
    flat: Callable[[Array], Array]

    def __call__(self, x: Array, n: Array, highest: int) -> Array:
        """`highest` is the last degree that is computed by recurrence."""
        angle = lax.acos(x)
        end = jnp.where(x > 0, self.at_one(n), self.at_minus_one(n))
        turned = jnp.where(self.flat(angle / 2), end, self.turned(angle, n))
        at_end = (lax.abs(x) == 1) & (n >= 0)
        by_angle = (lax.abs(x) < 1) & (n > highest)
        low = jnp.where(at_end | by_angle, jnp.minimum(n, 1), n)
        result = recurred(x, low, self.first, lambda x, k, p, q: (x + x) * p - q)
        return jnp.where(at_end, end, jnp.where(by_angle, turned, result))


def _never(half: Array) -> Array:
    return lax.full_like(half, False, bool)


T = Chebyshev(
    first=lambda x: x,
    turned=lambda angle, n: lax.cos(n * angle),
    at_one=lambda n: lax.full_like(n, 1),
    at_minus_one=_sign,
    flat=_never,
)
U = Chebyshev(
    first=lambda x: x + x,
    turned=lambda angle, n: lax.sin((n + 1) * angle) / lax.sin(angle),
    at_one=lambda n: n + 1,
    at_minus_one=lambda n: _sign(n) * (n + 1),
    flat=_never,
)
V = Chebyshev(
    first=lambda x: x + x - 1,
    turned=lambda angle, n: lax.cos((n + 0.5) * angle) / lax.cos(angle / 2),
    at_one=lambda n: lax.full_like(n, 1),
    at_minus_one=lambda n: _sign(n) * (n + n + 1),
    flat=lambda half: lax.sin(half) == 1,
)
W = Chebyshev(
    first=lambda x: x + x + 1,
    turned=lambda angle, n: lax.sin((n + 0.5) * angle) / lax.sin(angle / 2),
    at_one=lambda n: n + n + 1,
    at_minus_one=_sign,
    flat=lambda half: lax.cos(half) == 1,
)


# The others


def _hermite(first: First, following: Following) -> Known:
    def hermite(x: Array, n: Array) -> Array:
        """nan of degrees that PyTorch deems too high for the dtype."""
        too_high = n > HIGHEST_HERMITE[x.dtype.itemsize]
        return jnp.where(
            too_high, math.nan, recurred(x, jnp.where(too_high, 0, n), first, following)
        )

    return hermite


def _laguerre(x: Array, n: Array) -> Array:
    def following(x: Array, k: Array, p: Array, q: Array) -> Array:
        return ((k - 1 + (k - 1) + (1 - x)) * p - (k - 1) * q) / k

    return recurred(x, jnp.where(x == 0, jnp.minimum(n, 0), n), lambda x: 1 - x, following)


def _legendre(x: Array, n: Array) -> Array:
    def following(x: Array, k: Array, p: Array, q: Array) -> Array:
        return ((k + k - 1) * x * p - (k - 1) * q) / k

    at_end = (lax.abs(x) == 1) & (n >= 0)
    end = jnp.where(x > 0, 1, _sign(n)).astype(x.dtype)
    return jnp.where(at_end, end, recurred(x, jnp.where(at_end, 0, n), lambda x: x, following))


def _of(kind: Chebyshev, highest: int, *, shifted: bool = False) -> Known:
    """A Chebyshev polynomial; `shifted` makes [0, 1] of [-1, 1]."""
    return lambda x, n: kind(x + x - 1 if shifted else x, n, highest)


#   overloads                                  computed by
POLYNOMIALS = [
    (aten.special_chebyshev_polynomial_t,          _of(T, 6)),
    (aten.special_chebyshev_polynomial_u,          _of(U, 8)),
    (aten.special_chebyshev_polynomial_v,          _of(V, 8)),
    (aten.special_chebyshev_polynomial_w,          _of(W, 8)),
    (aten.special_shifted_chebyshev_polynomial_t,  _of(T, 6, shifted=True)),
    (aten.special_shifted_chebyshev_polynomial_u,  _of(U, 6, shifted=True)),
    (aten.special_shifted_chebyshev_polynomial_v,  _of(V, 6, shifted=True)),
    (aten.special_shifted_chebyshev_polynomial_w,  _of(W, 4, shifted=True)),
    (aten.special_hermite_polynomial_h,
     _hermite(lambda x: x + x, lambda x, k, p, q: (x + x) * p - (k + k - 2) * q)),
    (aten.special_hermite_polynomial_he,
     _hermite(lambda x: x, lambda x, k, p, q: x * p - (k - 1) * q)),
    (aten.special_laguerre_polynomial_l,           _laguerre),
    (aten.special_legendre_polynomial_p,           _legendre),
]  # fmt: skip


def _rule(compute: Known) -> Rule:
    def rule(x: Any, n: Any) -> Array:
        (x, n), dtype = wide_operands([x, n], Promote.INT_TO_FLOAT)
        x, n = filled([x, n])
        return rounded(compute(x, _whole(n)), dtype)

    return rule


for overloads, compute in POLYNOMIALS:
    for op in (overloads.default, overloads.x_scalar, overloads.n_scalar):
        table.add(op, _rule(compute))
