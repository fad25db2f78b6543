"""Lowerings of determinant, trace and exponential of a matrix, and of the cross product."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import along, wrapped
from torch_pjrt.lowering.linalg.decompose import lu_factored, real_dtype, transposed
from torch_pjrt.lowering.promote import opmath
from torch_pjrt.lowering.rearrange import roll
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("linalg.matrix")

# A norm up to which the approximation of the exponential is exact to the last digit.
_SMALL = 3.5


def _factored(a: Array) -> tuple[Array, Array, Array, Array]:
    """The factors, the pivots, the diagonal and the sign of the exchange of rows.

    Those of the transpose for a real matrix, as PyTorch factors a contiguous one: its formula for
    the gradient relies on that.
    """
    lu, pivots, _ = lu_factored(a if jnp.iscomplexobj(a) else transposed(a))
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    stays = lax.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1) + 1
    odd = jnp.sum(pivots != stays, -1, dtype=np.int32) % 2 == 1
    return lu, pivots, diagonal, jnp.where(odd, -1, 1).astype(real_dtype(a))


@table.lowers(aten._linalg_det.default)
def linalg_det(A: Array) -> tuple[Array, Array, Array]:
    lu, pivots, diagonal, sign = _factored(A)
    return jnp.prod(diagonal, -1) * sign, lu, pivots


@table.lowers(aten._linalg_slogdet.default)
def linalg_slogdet(A: Array) -> tuple[Array, Array, Array, Array]:
    lu, pivots, diagonal, sign = _factored(A)
    log = jnp.sum(lax.log(lax.abs(diagonal)), -1)
    return jnp.prod(lax.sign(diagonal), -1) * sign, log, lu, pivots


@table.lowers(aten.linalg_matrix_exp.default)
def linalg_matrix_exp(self: Array) -> Array:
    """exp(A) as exp(A / 2^n) squared n times, with n from the norm of each matrix."""
    if not self.size:
        return self
    if self.dtype != opmath(self.dtype):
        wide = linalg_matrix_exp(lax.convert_element_type(self, opmath(self.dtype)))
        return lax.convert_element_type(wide, self.dtype)
    norm = jnp.max(jnp.sum(lax.abs(self), -2), -1)
    finite = jnp.where(norm < np.inf, norm, 0)
    exponent = jnp.ceil(jnp.log2(jnp.maximum(finite, _SMALL) / _SMALL))
    scaled = self * lax.exp2(-exponent)[..., None, None].astype(self.dtype)
    times = exponent.astype(np.int32)

    def square(i: Array, x: Array) -> Array:
        squared = jnp.matmul(x, x, precision=lax.Precision.HIGHEST)
        return jnp.where((i < times)[..., None, None], squared, x)

    # The norm is small enough by now for JAX not to square any further.
    x = jax.scipy.linalg.expm(scaled, max_squarings=0)
    return lax.fori_loop(0, jnp.max(times), square, x)


@table.lowers(aten.trace.default)
def trace(self: Array) -> Array:
    """Integers add up in int64."""
    integers = self.dtype.kind in "iub"
    wide = np.dtype(np.int64) if integers else opmath(self.dtype)
    on_it = lax.eq(along(self.shape, 0), along(self.shape, 1))
    x = lax.convert_element_type(self, wide)
    total = lax.reduce_sum(lax.select(on_it, x, lax.full_like(x, 0)), (0, 1))
    return total if integers else lax.convert_element_type(total, self.dtype)


@table.lowers(aten.linalg_cross.default)
def linalg_cross(self: Array, other: Array, *, dim: int = -1) -> Array:
    """Of vectors of 3 entries along `dim`; the other dims broadcast."""
    shape = np.broadcast_shapes(self.shape, other.shape)
    x, y = jnp.broadcast_to(self, shape), jnp.broadcast_to(other, shape)
    dim = wrapped(dim, len(shape))
    # Entry i is x[i+1] y[i+2] - x[i+2] y[i+1], counted round.
    return roll(x, (-1,), (dim,)) * roll(y, (-2,), (dim,)) - roll(x, (-2,), (dim,)) * roll(
        y, (-1,), (dim,)
    )
