"""Sums of values that a query sees, though others in the same block hold no numbers.

A weight of 0 does not keep a NaN out of a sum. In a cache of many requests the values of one must not reach
another, and places that nobody has written hold anything.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt_kernels.attention.blockwise import product

Array = jax.Array


def sums_of_seen(weights_BNRK: Array, values_BNKV: Array, seen_BNRK: Array) -> Array:
    """The products of both, where a value that a query does not see is nothing to it: BNRV.

    What no query sees becomes 0 first. Only where there still is no number, every query is looked at.
    """
    some = lax.expand_dims(lax.reduce_or(seen_BNRK, (2,)), (3,))
    values = jnp.where(some, values_BNKV, np.zeros((), values_BNKV.dtype))
    finite = lax.is_finite(values)

    def as_they_are() -> Array:
        return product(weights_BNRK, values, 3, 2)

    def each() -> Array:
        sums = product(weights_BNRK, jnp.where(finite, values, np.zeros((), values.dtype)), 3, 2)
        seen = lax.convert_element_type(seen_BNRK, values.dtype)
        for number in (np.inf, -np.inf, np.nan):
            there = jnp.isnan(values) if np.isnan(number) else values == number
            met = product(seen, lax.convert_element_type(there, values.dtype), 3, 2) > 0
            sums = sums + jnp.where(met, np.asarray(number, sums.dtype), np.zeros((), sums.dtype))
        return sums

    return lax.cond(lax.reduce_and(finite, (0, 1, 2, 3)), as_they_are, each)
