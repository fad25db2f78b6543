"""Lowerings of fake quantization: rounding to a few levels, as integers would, in floating point.

Each gives the rounded numbers, and which of them lie within the levels: only those have a gradient.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("quantize")


def _quantized(
    x: Array, scale: Array, zero_point: Array, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    wide = as_dtype(x, opmath(x.dtype))
    level = lax.round(wide * (1 / scale), lax.RoundingMethod.TO_NEAREST_EVEN) + zero_point
    low, high = as_dtype(quant_min, wide.dtype), as_dtype(quant_max, wide.dtype)
    inside = (level >= low) & (level <= high)
    result = (lax.clamp(low, level, high) - zero_point) * scale
    return as_dtype(result, x.dtype), inside


@table.lowers(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize_per_tensor(
    self: Array, scale: Any, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    wide = opmath(self.dtype)
    factor, zero = as_dtype(scale, wide), as_dtype(zero_point, wide)
    return _quantized(self, factor, zero, quant_min, quant_max)


@table.lowers(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_per_tensor_of_tensors(
    self: Array,
    scale: Array,
    zero_point: Array,
    fake_quant_enabled: Array,
    quant_min: int,
    quant_max: int,
) -> tuple[Array, Array]:
    """Where it is not enabled, the numbers themselves, all of them within."""
    wide = opmath(self.dtype)
    factor, zero = (as_dtype(lax.reshape(p, ()), wide) for p in (scale, zero_point))
    result, inside = _quantized(self, factor, zero, quant_min, quant_max)
    enabled = lax.broadcast(lax.reshape(fake_quant_enabled, ()) != 0, self.shape)
    return lax.select(enabled, result, self), inside | ~enabled


@table.lowers(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_per_channel(
    self: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    wide = opmath(self.dtype)
    dims = (axis % self.ndim,)
    factor, zero = (
        lax.broadcast_in_dim(as_dtype(p, wide), self.shape, dims) for p in (scale, zero_point)
    )
    return _quantized(self, factor, zero, quant_min, quant_max)
