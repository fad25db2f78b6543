"""Lowerings of softmax and log-softmax, and of their derivatives.

Half inputs are computed in float32 and rounded once. `half_to_float` and `input_dtype` tell that
the result stays in float32, or that the gradient of such a result comes back for a half input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.promote import Array, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float

table = LoweringTable("softmax")


def _kept(x: Array, dim: int, like: Array) -> Array:
    """`x`, folded along `dim`, spread over the shape of `like` again."""
    dims = tuple(i for i in range(like.ndim) if i != dim)
    return lax.broadcast_in_dim(x, like.shape, dims)


def _shifted(x: Array, dim: int) -> Array:
    """`x` minus its maximum along `dim`, so that `exp` cannot overflow."""
    return lax.sub(x, _kept(lax.reduce_max(x, (dim,)), dim, x))


def _sum(x: Array, dim: int) -> Array:
    return lax.reduce_sum(x, (dim,))


@table.lowers(aten._softmax.default)
def _softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    wide = cast(x, opmath(x.dtype))
    dtype = wide.dtype if half_to_float else x.dtype
    if x.ndim == 0:
        return lax.reshape(_softmax(lax.reshape(x, (1,)), 0, half_to_float), ())
    dim %= x.ndim
    powers = lax.exp(_shifted(wide, dim))
    return cast(lax.div(powers, _kept(_sum(powers, dim), dim, powers)), dtype)


@table.lowers(aten._log_softmax.default)
def _log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    wide = cast(x, opmath(x.dtype))
    dtype = wide.dtype if half_to_float else x.dtype
    if x.ndim == 0:
        return lax.reshape(_log_softmax(lax.reshape(x, (1,)), 0, half_to_float), ())
    dim %= x.ndim
    shifted = _shifted(wide, dim)
    total = lax.log(_sum(lax.exp(shifted), dim))
    return cast(lax.sub(shifted, _kept(total, dim, shifted)), dtype)


@table.lowers(aten._softmax_backward_data.default)
def _softmax_backward_data(
    grad_output: Float[Array, "*dims"],
    output: Float[Array, "*dims"],
    dim: int,
    input_dtype: torch.dtype,
) -> Float[Array, "*dims"]:
    wide = opmath(output.dtype)
    grad, result = cast(grad_output, wide), cast(output, wide)
    weighted = lax.mul(grad, result)
    if result.ndim:
        dim %= result.ndim
        weighted = lax.sub(weighted, lax.mul(result, _kept(_sum(weighted, dim), dim, result)))
    else:
        weighted = lax.sub(weighted, lax.mul(result, weighted))
    return cast(weighted, dtypes.to_jax(input_dtype))


@table.lowers(aten._log_softmax_backward_data.default)
def _log_softmax_backward_data(
    grad_output: Float[Array, "*dims"],
    output: Float[Array, "*dims"],
    dim: int,
    input_dtype: torch.dtype,
) -> Float[Array, "*dims"]:
    wide = opmath(output.dtype)
    grad, result = cast(grad_output, wide), cast(output, wide)
    total = grad
    if result.ndim:
        dim %= result.ndim
        total = _kept(_sum(grad, dim), dim, result)
    grad = lax.sub(grad, lax.mul(lax.exp(result), total))
    return cast(grad, dtypes.to_jax(input_dtype))
