"""Lowering of the backward of weight normalization (Salimans and Kingma, 2016).

A weight is `g * v / norm(v)`, with a norm and a factor for each index of one dim. Forward is composed of
other operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax import lax

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float

Array = jax.Array

table = LoweringTable("weight_norm")


@table.lowers(aten._weight_norm_interface_backward.default)
def weight_norm_interface_backward(
    grad_w: Float[Array, "*shape"],
    saved_v: Float[Array, "*shape"],
    saved_g: Float[Array, "*one"],
    saved_norms: Float[Array, "*one"],
    dim: int,
) -> tuple[Float[Array, "*shape"], Float[Array, "*one"]]:
    wide = opmath(saved_v.dtype)
    grad, v, g, norms = (as_dtype(x, wide) for x in (grad_w, saved_v, saved_g, saved_norms))
    axes = tuple(a for a in range(v.ndim) if a != dim % v.ndim)
    along = lax.expand_dims(lax.reduce_sum(grad * v, axes), axes) / norms
    grad_v = g / norms * (grad - v * (along / norms))
    return as_dtype(grad_v, saved_v.dtype), as_dtype(along, saved_g.dtype)
