"""GPTQ and AWQ of one weight, in JAX: four-bit numbers that lose little of a layer's outputs.

What is lost is measured with the sum of X.T @ X over a layer's inputs X: the outputs' squared error is the
sum over rows of `lost @ products @ lost`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch import Tensor

from torch_pjrt import jax_function

Array = jax.Array

# AWQ's grid of exponents: 0, 1/20, ..., 19/20.
EXPONENTS = 20
# By how much AWQ tries to make the range of a group smaller: 1, 0.95, ..., 0.55.
RATIOS = 10


def _range(w: Array, symmetric: bool) -> tuple[Array, Array]:
    """Scale and zero of each row's numbers (rows, columns of a group), as `packing.to_int4` chooses them."""
    if symmetric:
        scale = jnp.maximum(jnp.max(jnp.abs(w), -1) / 7, 1e-12)
        return scale, jnp.full_like(scale, 8)
    low, high = jnp.minimum(jnp.min(w, -1), 0), jnp.maximum(jnp.max(w, -1), 0)
    scale = jnp.maximum((high - low) / 15, 1e-12)
    return scale, jnp.clip(jnp.round(-low / scale), 0, 15)


@cache
def gptq(size: int, symmetric: bool, damping: float) -> Callable[..., tuple[Tensor, ...]]:
    """Of a weight and its inputs' products: numbers (uint8, rows x columns), scales and zeros (uint8).

    The fourth result is False where the products have no factors, and the numbers mean nothing.
    """

    def compute(weight: Array, products: Array) -> tuple[Array, Array, Array, Array]:
        rows, columns = weight.shape
        diagonal = jnp.diagonal(products)
        unused = diagonal == 0
        weight = jnp.where(unused, 0, weight)
        more = jnp.where(unused, 1, 0) + damping * jnp.mean(diagonal)
        with jax.default_matmul_precision("highest"):
            factor = jnp.linalg.cholesky(products + jnp.diag(more))
            identity = jnp.eye(columns, dtype=weight.dtype)
            inverse = jax.scipy.linalg.cho_solve((factor, True), identity)
            upper = jnp.linalg.cholesky((inverse + inverse.T) / 2).T

            def group(n: Any, carry: tuple[Array, ...]) -> tuple[Array, ...]:
                weight, numbers, scales, zeros = carry
                start = n * size
                w = lax.dynamic_slice_in_dim(weight, start, size, 1)
                scale, zero = _range(w, symmetric)
                ahead = lax.dynamic_slice_in_dim(upper, start, size, 0)
                within = lax.dynamic_slice_in_dim(ahead, start, size, 1)

                def column(i: Any, inner: tuple[Array, ...]) -> tuple[Array, ...]:
                    w, q, lost = inner
                    now = w[:, i]
                    number = jnp.clip(jnp.round(now / scale + zero), 0, 15)
                    error = (now - (number - zero) * scale) / within[i, i]
                    w = w - error[:, None] * jnp.where(jnp.arange(size) >= i, within[i], 0)
                    return w, q.at[:, i].set(number), lost.at[:, i].set(error)

                empty = jnp.zeros_like(w)
                _, q, lost = lax.fori_loop(0, size, column, (w, empty, empty))
                behind = jnp.arange(columns) >= start + size
                weight = weight - lost @ jnp.where(behind, ahead, 0)
                numbers = lax.dynamic_update_slice_in_dim(numbers, q, start, 1)
                return weight, numbers, scales.at[:, n].set(scale), zeros.at[:, n].set(zero)

            groups = jnp.zeros((rows, columns // size), weight.dtype)
            start = weight, jnp.zeros_like(weight), groups, groups
            _, numbers, scales, zeros = lax.fori_loop(0, columns // size, group, start)
        is_finite = jnp.isfinite(upper).all()
        return numbers.astype(jnp.uint8), scales, zeros.astype(jnp.uint8), is_finite

    return jax_function(compute)


@cache
def awq(size: int, symmetric: bool) -> Callable[..., tuple[Tensor, ...]]:
    """Of a weight, its inputs' products and their sizes by column: what AWQ finds.

    Gives numbers (uint8, rows x columns), scales and zeros (rows x groups, zeros uint8) of the weight whose
    columns are multiplied by factors, and those factors. Their calibration error is at most that of rounding
    to nearest, which is among what is tried.
    """

    def compute(weight: Array, products: Array, sizes: Array) -> tuple[Array, ...]:
        with jax.default_matmul_precision("highest"):
            factor = _factor(weight, products, sizes, size, symmetric)
            scaled, products = weight * factor, products / (factor[:, None] * factor)
            numbers, scale, zero = _clipped(scaled, products, size, symmetric)
        return numbers.astype(jnp.uint8), scale, zero.astype(jnp.uint8), factor

    return jax_function(compute)


def _factor(weight: Array, products: Array, sizes: Array, size: int, symmetric: bool) -> Array:
    """Of powers of the inputs' sizes, also divided by the weights', that with which rounding loses least."""
    sizes = jnp.maximum(sizes, 1e-8)
    heights = jnp.maximum(jnp.mean(jnp.abs(weight), 0), 1e-8)

    def factor_of(exponents: Array) -> Array:
        factor = jnp.maximum(sizes ** exponents[0] / heights ** exponents[1], 1e-4)
        return factor / jnp.sqrt(jnp.max(factor) * jnp.min(factor))

    def loss(exponents: Array) -> Array:
        factor = factor_of(exponents)
        lost = weight - _nearest(weight * factor, size, symmetric)[0] / factor
        return jnp.sum((lost @ products) * lost)

    steps = jnp.arange(EXPONENTS, dtype=weight.dtype) / EXPONENTS
    alone = jnp.stack([steps, jnp.zeros_like(steps)], 1)
    grid = jnp.concatenate([alone, jnp.stack([steps, 1 - steps], 1)])
    return factor_of(grid[jnp.argmin(lax.map(loss, grid))])


def _nearest(
    weight: Array, size: int, symmetric: bool, ratio: Any = 1.0
) -> tuple[Array, Array, Array, Array]:
    """The weight rounded to nearest in ranges `ratio` as large; numbers, scales and zeros."""
    groups = weight.reshape(len(weight), -1, size)
    scale, zero = _range(groups * ratio, symmetric)
    numbers = jnp.clip(jnp.round(groups / scale[..., None] + zero[..., None]), 0, 15)
    rounded = (numbers - zero[..., None]) * scale[..., None]
    return rounded.reshape(weight.shape), numbers.reshape(weight.shape), scale, zero


def _clipped(
    weight: Array, products: Array, size: int, symmetric: bool
) -> tuple[Array, Array, Array]:
    """Numbers, scales and zeros with ranges cut, group by group, where the outputs lose less by that.

    A group's error depends on what the row's other groups lose, so each choice takes the others as they are:
    no choice makes the error larger.
    """
    rounded, numbers, scales, zeros = _nearest(weight, size, symmetric)
    ratios = 1 - jnp.arange(RATIOS, dtype=weight.dtype) / (2 * RATIOS)
    rows = jnp.arange(len(weight))

    def group(n: Any, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        numbers, scales, zeros, lost, lost_products = carry
        start = n * size
        own, before, felt = (
            lax.dynamic_slice_in_dim(a, start, size, 1) for a in (weight, lost, lost_products)
        )
        ahead = lax.dynamic_slice_in_dim(products, start, size, 0)
        within = lax.dynamic_slice_in_dim(ahead, start, size, 1)

        def tried(ratio: Array) -> tuple[Array, ...]:
            rounded, number, scale, zero = _nearest(own, size, symmetric, ratio)
            more = own - rounded - before
            change = jnp.sum((more @ within + 2 * felt) * more, 1)
            return change, more, number, scale[:, 0], zero[:, 0]

        change, *results = lax.map(tried, ratios)
        best = jnp.argmin(change, 0)
        more, number, scale, zero = (r[best, rows] for r in results)
        return (
            lax.dynamic_update_slice_in_dim(numbers, number, start, 1),
            scales.at[:, n].set(scale),
            zeros.at[:, n].set(zero),
            lax.dynamic_update_slice_in_dim(lost, before + more, start, 1),
            lost_products + more @ ahead,
        )

    lost = weight - rounded
    start = numbers, scales, zeros, lost, lost @ products
    return lax.fori_loop(0, scales.shape[1], group, start)[:3]
