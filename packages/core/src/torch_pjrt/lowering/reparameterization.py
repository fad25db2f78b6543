"""Lowerings of derivatives of random samples by the parameters that they were drawn with.

A sample `x` of a distribution with the function `F(x; a)` moves with `a` so that `F` stays: by
`-(dF/da) / (dF/dx)` (Figurnov, Mohamed and Mnih, 2018).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import betainc, betaln

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("reparameterization")

LARGE = 1e3
STEP = 1e-5  # of a difference in float64: error and rounding are both near 1e-10


@table.lowers(aten._standard_gamma_grad.default)
def standard_gamma_grad(self: Array, output: Array) -> Array:
    """Of a gamma sample `output` by its concentration `self`."""
    wide = opmath(self.dtype)
    alpha, x = as_dtype(self, wide), as_dtype(output, wide)
    # There the series of JAX has as many terms as the root of `alpha`: hours from 1e20 on.
    ratio = x / alpha
    is_large = (alpha > LARGE) & (lax.abs(ratio - 1) < 0.1)
    slope = lax.random_gamma_grad(*(jnp.where(is_large, 1, z) for z in (alpha, x)))  # pyright: ignore[reportCallIssue]
    slope = jnp.where(is_large, _slope_of_large(alpha, ratio), slope)
    return as_dtype(slope, self.dtype)


def _slope_of_large(alpha: Array, ratio: Array) -> Array:
    """Rice's expansion around the saddle point, as in PyTorch, in powers of 1 / alpha."""
    first = 288 + (24 + 1 / alpha) / alpha
    second = 1440 + ratio * (3600 - 720 * ratio) + (107 + ratio * (318 - 65 * ratio)) / alpha
    return first * second / 1244160


@table.lowers(aten._dirichlet_grad.default)
def dirichlet_grad(x: Array, alpha: Array, total: Array) -> Array:
    """Of a beta sample `x` by `alpha`, where the other concentration, `total - alpha`, stays; over `1 - x`.

    The latter because the other components of a Dirichlet sample shrink together as `1 - x` does.
    The derivative of the incomplete beta function is a difference in float64, taken on that side of the
    mean where the function is small, so that nothing cancels.
    """
    dtype = x.dtype
    x, a, total = (as_dtype(v, np.dtype(np.float64)) for v in jnp.broadcast_arrays(x, alpha, total))
    b = total - a
    h = STEP * a
    below = (betainc(a + h, b, x) - betainc(a - h, b, x)) / (2 * h)
    above = (betainc(b, a - h, 1 - x) - betainc(b, a + h, 1 - x)) / (2 * h)
    by_a = jnp.where(x < a / total, below, above)
    log_density = (a - 1) * jnp.log(x) + (b - 1) * jnp.log1p(-x) - betaln(a, b)
    return as_dtype(-by_a / jnp.exp(log_density) / (1 - x), dtype)
