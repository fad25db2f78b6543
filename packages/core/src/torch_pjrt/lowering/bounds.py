"""The first element of a tensor of places that lies outside of what it indexes, found on the device."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

Array = jax.Array


def outside(
    places: Array, before: Array | None, which: int, low: int, high: int, ignored: int | None
) -> Array:
    """`[which, place]` of the first place not in `low ... high - 1`, else what was found `before`.

    `before` is the same of an earlier watch, None for the first; nothing found is `[0, 0]`.
    """
    flat = lax.convert_element_type(lax.reshape(places, (places.size,)), np.int64)
    bad = lax.bitwise_or(flat < low, flat >= high)
    if ignored is not None:
        bad = lax.bitwise_and(bad, flat != ignored)
    at = lax.broadcasted_iota(np.int64, flat.shape, 0)
    none = np.int64(flat.size)
    first = lax.reduce_min(lax.select(bad, at, lax.full_like(at, none)), (0,))
    place = lax.dynamic_index_in_dim(flat, lax.min(first, none - 1), keepdims=False)
    found = lax.concatenate([lax.full((1,), which, np.int64), lax.reshape(place, (1,))], 0)
    if before is None:
        before = lax.full((2,), 0, np.int64)
    is_new = lax.bitwise_and(first < none, before[0] == 0)
    return lax.select(lax.broadcast(is_new, (2,)), found, before)
