"""The first fault of a kind that a tensor has: `operators.FAULTS` says what the kinds are."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt import operators
from torch_pjrt.lowering.table import LoweringTable

Array = jax.Array
table = LoweringTable("fault")

_INT64 = np.dtype(np.int64)


def _in_matrix(has: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: jnp.any(has(x), (-2, -1))


FAULTS: dict[str, Callable[[Array], Array]] = {
    "less than 0": lambda x: x < 0,
    "not at least 0": lambda x: ~(x >= 0),
    "no chance": lambda x: ~((x >= 0) & (x <= 1)),
    "zero": lambda x: x == 0,
    "zero on the diagonal": lambda x: jnp.diagonal(x, axis1=-2, axis2=-1) == 0,
    "nan in a matrix": _in_matrix(jnp.isnan),
    "nan below the diagonal": _in_matrix(lambda x: jnp.isnan(jnp.tril(x))),
    "nan above the diagonal": _in_matrix(lambda x: jnp.isnan(jnp.triu(x))),
    "not finite": lambda x: ~jnp.isfinite(x),
    "not finite in a matrix": _in_matrix(lambda x: ~jnp.isfinite(x)),
}


@table.lowers(operators.fault)
def fault(self: Array, kind: str) -> Array:
    bad = FAULTS[kind](self).reshape(-1)
    if not bad.size:
        return lax.full((), 0, _INT64)
    at = lax.broadcasted_iota(_INT64, bad.shape, 0)
    none = lax.full_like(at, bad.size)
    first = lax.reduce_min(lax.select(bad, at, none), (0,))
    return lax.select(first < bad.size, first + 1, lax.full((), 0, _INT64))
