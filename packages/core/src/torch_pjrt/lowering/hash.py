"""Lowering of the hash of a tensor's elements."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import wrapped_all
from torch_pjrt.lowering.promote import as_dtype
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("hash")


@table.lowers(aten.hash_tensor.default)
def hash_tensor(
    self: Array, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0
) -> Array:
    """Exclusive or of the bits of all elements, each widened to 64 bits."""
    is_float = jnp.issubdtype(self.dtype, np.floating)
    wide = as_dtype(self, np.dtype(np.float64 if is_float else np.int64))
    bits = lax.bitcast_convert_type(wide, np.dtype(np.uint64))
    dims = wrapped_all(dim, self.ndim) if dim else tuple(range(self.ndim))
    if not self.ndim:
        return bits
    result = lax.reduce(bits, np.uint64(0), lax.bitwise_xor, dims)
    return lax.expand_dims(result, dims) if keepdim else result
