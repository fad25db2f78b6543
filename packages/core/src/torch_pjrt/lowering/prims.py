"""Lowerings of `prims`, the ops that PyTorch's own decompositions are written in.

A prim promotes nothing: its tensors have one dtype already. So each one is the rule of its `aten`
namesake under another name, or a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering import creation, reduction
from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.pointwise import (
    binary,
    bitwise,
    compare,
    special,
    ternary,
    unary,
)
from torch_pjrt.lowering.pointwise import complex as complex_
from torch_pjrt.lowering.promote import Array
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten, prims

table = LoweringTable("prims")

ATEN = LoweringTable.merged(
    "pointwise", [m.table for m in (binary, bitwise, compare, complex_, special, ternary, unary)]
)

SAME_NAME = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos",
    "cosh", "digamma", "erf", "erfc", "exp", "exp2", "expm1", "floor", "lgamma", "log", "log10",
    "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sign", "signbit", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc", "atan2", "fmax", "fmin", "gcd", "hypot", "igamma",
    "igammac", "maximum", "minimum", "nextafter",
]  # fmt: skip

SAME_NAME_OF_TENSORS = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "fmod", "ge", "gt", "le", "lt",
    "mul", "ne", "remainder", "sub",
]  # fmt: skip

OTHER_NAME = [
    (prims.bessel_i0.default, aten.i0.default),
    (prims.bessel_i0e.default, aten.special_i0e.default),
    (prims.bessel_i1.default, aten.special_i1.default),
    (prims.bessel_i1e.default, aten.special_i1e.default),
    (prims.conj_physical.default, aten._conj_physical.default),
    (prims.erf_inv.default, aten.erfinv.default),
    (prims.ndtri.default, aten.special_ndtri.default),
    (prims.pow.default, aten.pow.Tensor_Tensor),
    (prims.shift_left.default, aten.bitwise_left_shift.Tensor),
    (prims.shift_right_arithmetic.default, aten.bitwise_right_shift.Tensor),
    (prims.spherical_bessel_j0.default, aten.special_spherical_bessel_j0.default),
    (prims.where.default, aten.where.self),
    (prims.zeta.default, aten.special_zeta.default),
]

for name in SAME_NAME:
    table.add(getattr(prims, name).default, ATEN.rule_of(getattr(aten, name).default))
for name in SAME_NAME_OF_TENSORS:
    table.add(getattr(prims, name).default, ATEN.rule_of(getattr(aten, name).Tensor))
for prim, op in OTHER_NAME:
    table.add(prim, ATEN.rule_of(op))


@table.lowers(prims.div.default)
def div(x: Any, other: Any) -> Array:
    """Of integers, rounded towards 0."""
    whole = unary.is_exact(x)
    return binary.div_mode(x, other, rounding_mode="trunc" if whole else None)


@table.lowers(prims.cbrt.default)
def cbrt(x: Array) -> Array:
    return lax.cbrt(x)


@table.lowers(prims.isfinite.default)
def isfinite(x: Array) -> Array:
    if x.dtype.kind == "c":
        return lax.bitwise_and(lax.is_finite(lax.real(x)), lax.is_finite(lax.imag(x)))
    return lax.full(x.shape, True) if unary.is_exact(x) else lax.is_finite(x)


@table.lowers(prims.clone.default)
def clone(x: Array) -> Array:
    return x


@table.lowers(prims.fill.default)
def fill(x: Array, value: Any) -> Array:
    return creation.fill(x, value)


@table.lowers(prims.full.default)
def full(
    shape: Sequence[int], fill_value: Any, *, dtype: torch.dtype, requires_grad: bool = False
) -> Array:
    return creation.full(shape, fill_value, dtype=dtype)


@table.lowers(prims.full_like.default)
def full_like(
    a: Array, fill_value: Any, *, dtype: torch.dtype, requires_grad: bool = False
) -> Array:
    return creation.full_like(a, fill_value, dtype=dtype)


@table.lowers(prims.scalar_tensor.default)
def scalar_tensor(s: Any, *, dtype: torch.dtype | None = None) -> Array:
    return creation.scalar_tensor(s, dtype=dtype)


@table.lowers(prims.iota.default)
def iota(
    length: int, *, start: int, step: int, dtype: torch.dtype, requires_grad: bool = False
) -> Array:
    return creation.arange_start_step(start, start + length * step, step, dtype=dtype)


@table.lowers(prims.rev.default)
def rev(a: Array, dims: Sequence[int]) -> Array:
    return lax.rev(a, [dim % a.ndim for dim in dims])


@table.lowers(prims.cat.default)
def cat(tensors: Sequence[Array], dim: int) -> Array:
    return lax.concatenate(tensors, dim % tensors[0].ndim)


@table.lowers(prims.reshape.default)
def reshape(a: Array, shape: Sequence[int]) -> Array:
    return lax.reshape(a, shape)


@table.lowers(prims.amax.default)
def amax(x: Array, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Array:
    return _as(reduction.amax(x, dims), output_dtype)


@table.lowers(prims.amin.default)
def amin(x: Array, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Array:
    return _as(reduction.amin(x, dims), output_dtype)


@table.lowers(prims.sum.default)
def sum(x: Array, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Array:
    return reduction.sum(x, dims, dtype=output_dtype)


@table.lowers(prims.prod.default)
def prod(x: Array, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> Array:
    return reduction.prod(x, dims, dtype=output_dtype)


@table.lowers(prims.var.default, static=["correction"])
def var(
    x: Array,
    dims: Sequence[int] | None,
    correction: float | None = 1,
    *,
    output_dtype: torch.dtype | None = None,
) -> Array:
    return _as(reduction.var(x, dims, correction=correction), output_dtype)


def _as(x: Array, dtype: torch.dtype | None) -> Array:
    return x if dtype is None else cast(x, dtypes.to_jax(dtype))
