"""The first element of a tensor of indices that is out of range, found on the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array


def outside(
    positions: Array,
    before: Array | None,
    which: int,
    low: int,
    high: int,
    ignored: int | None,
    size: Array | None,
) -> Array:
    """`[which, index, high]` of the first index not in `low ... high - 1`, else what was `before`.

    `before` is the same of an earlier check, None for the first; nothing found is `[0, 0, 0]`.
    `low` and `high` are multiples of the `size`, if there is one.
    """
    flat = lax.convert_element_type(lax.reshape(positions, (positions.size,)), np.int64)
    one = jnp.int64(1) if size is None else size
    least, most = low * one, high * one
    bad = lax.bitwise_or(flat < least, flat >= most)
    if ignored is not None:
        bad = lax.bitwise_and(bad, flat != ignored)
    at = lax.broadcasted_iota(np.int64, flat.shape, 0)
    none = np.int64(flat.size)
    first = lax.reduce_min(lax.select(bad, at, lax.full_like(at, none)), (0,))
    index = lax.dynamic_index_in_dim(flat, lax.min(first, none - 1), keepdims=False)
    found = jnp.stack([jnp.int64(which), index, most])
    if before is None:
        before = lax.full((3,), 0, np.int64)
    is_new = lax.bitwise_and(first < none, before[0] == 0)
    return lax.select(lax.broadcast(is_new, (3,)), found, before)
