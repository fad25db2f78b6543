"""Lowerings of ops that make complex numbers or take them apart.

`real`, `imag`, `conj` and `view_as_real` are views in PyTorch and never get here.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from torch_pjrt.lowering.pointwise.rows import constant, filled, operands, row, select
from torch_pjrt.lowering.pointwise.unary import isnan
from torch_pjrt.lowering.promote import Array, Promote
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.complex")


@table.lowers(aten.complex.default)
def complex(real: Array, imag: Array) -> Array:
    """Of float16, what stands for complex32."""
    parts = filled([real, imag])
    if parts[0].dtype == jnp.float16:
        parts = [part.astype(jnp.float32) for part in parts]
    return lax.complex(*parts)


@table.lowers(aten.polar.default)
def polar(abs: Array, angle: Array) -> Array:
    abs, angle = filled([abs, angle])
    return lax.complex(lax.mul(abs, lax.cos(angle)), lax.mul(abs, lax.sin(angle)))


@table.lowers(aten.angle.default)
def angle(x: Array) -> Array:
    """Between -pi and pi; of a real number, pi if it is negative, else 0."""
    if x.dtype.kind == "c":
        return lax.atan2(lax.imag(x), lax.real(x))
    (x,), _ = operands([x], Promote.INT_TO_FLOAT)
    zero = constant(0, x)
    return select(isnan(x), x, select(lax.lt(x, zero), constant(math.pi, x), zero))


@table.lowers(aten._conj_physical.default, aten._conj_copy.default, aten.conj_physical.default)
def conj_physical(x: Array) -> Array:
    return lax.conj(x) if x.dtype.kind == "c" else x


table.add(aten._neg_view_copy.default, row(lax.neg))


@table.lowers(aten.view_as_real_copy.default)
def view_as_real_copy(x: Array) -> Array:
    parts = [lax.expand_dims(part, (x.ndim,)) for part in (lax.real(x), lax.imag(x))]
    return lax.concatenate(parts, x.ndim)


@table.lowers(aten.view_as_complex_copy.default)
def view_as_complex_copy(x: Array) -> Array:
    last = x.ndim - 1
    return lax.complex(
        lax.index_in_dim(x, 0, last, keepdims=False), lax.index_in_dim(x, 1, last, keepdims=False)
    )
