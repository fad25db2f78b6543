"""Lowerings of ops that count elements by value, into a number of bins known beforehand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from torch_pjrt.lowering.dims import INT32
from torch_pjrt.lowering.promote import as_dtype
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("histogram")


@table.lowers(aten.histc.default, static=("min", "max"))
def histc(self: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    """Bins of one width from `min` to `max`; other elements, and nan, are not counted.

    The last bin has both its ends. Equal `min` and `max` stand for the range of the elements; if
    that too is a point, for one on each side of it.
    """
    x = lax.reshape(self, (self.size,))
    if not x.size:
        return lax.full((bins,), 0, x.dtype)
    if min == max:
        low, high = jnp.min(x), jnp.max(x)
        point = low == high
        low, high = (jnp.where(point, end + by, end) for end, by in ((low, -1), (high, 1)))
        low, high = as_dtype(low, x.dtype), as_dtype(high, x.dtype)
    else:
        low, high = (as_dtype(end, x.dtype) for end in (min, max))
    inside = (x >= low) & (x <= high)
    position = lax.convert_element_type((x - low) * as_dtype(bins, x.dtype) / (high - low), INT32)
    position = lax.select(
        inside, lax.min(position, lax.full_like(position, bins - 1)), lax.full_like(position, bins)
    )
    counts = lax.scatter_add(
        lax.full((bins,), 0, INT32),
        lax.expand_dims(position, (1,)),
        lax.full(x.shape, 1, INT32),
        lax.ScatterDimensionNumbers((), (0,), (0,)),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )
    return lax.convert_element_type(counts, x.dtype)
