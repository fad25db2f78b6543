"""Lowerings of fake quantization: rounding to a few levels, as integers would, in floating point.

Each gives the rounded numbers, and which of them lie within the levels: only those have a gradient. Scales
and zeros that are learned have gradients, too (Esser et al., "Learned Step Size Quantization", 2020).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
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


@table.lowers(aten._fake_quantize_learnable_per_tensor_affine.default)
def fake_quantize_learnable_per_tensor(
    self: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Array:
    factor, zero = _learned(self, scale, zero_point, quant_min, quant_max, ())
    return _quantized(self, factor, zero, quant_min, quant_max)[0]


@table.lowers(aten._fake_quantize_learnable_per_channel_affine.default)
def fake_quantize_learnable_per_channel(
    self: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Array:
    factor, zero = _learned(self, scale, zero_point, quant_min, quant_max, (axis % self.ndim,))
    return _quantized(self, factor, zero, quant_min, quant_max)[0]


def _learned(
    x: Array, scale: Array, zero_point: Array, quant_min: int, quant_max: int, dims: tuple[int, ...]
) -> tuple[Array, Array]:
    """Scales and zeros along the tensor; zeros are rounded and within the levels."""
    zero = jnp.clip(lax.round(zero_point, lax.RoundingMethod.TO_NEAREST_EVEN), quant_min, quant_max)
    shape = tuple(x.shape[d] for d in dims)
    factor, zero = (
        lax.broadcast_in_dim(as_dtype(lax.reshape(p, shape), opmath(x.dtype)), x.shape, dims)
        for p in (scale, zero)
    )
    return factor, zero


@table.lowers(aten._fake_quantize_learnable_per_tensor_affine_backward.default)
def fake_quantize_learnable_per_tensor_backward(
    grad: Array,
    self: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Array, Array, Array]:
    return _learned_backward(
        grad, self, scale, zero_point, quant_min, quant_max, grad_factor, dims=()
    )


@table.lowers(aten._fake_quantize_learnable_per_channel_affine_backward.default)
def fake_quantize_learnable_per_channel_backward(
    grad: Array,
    self: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Array, Array, Array]:
    return _learned_backward(
        grad, self, scale, zero_point, quant_min, quant_max, grad_factor, dims=(axis % self.ndim,)
    )


def _learned_backward(
    grad: Array,
    x: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: float,
    dims: tuple[int, ...],
) -> tuple[Array, Array, Array]:
    """Gradients of the numbers, of the scale and of the zero.

    Within the levels the scale's is what rounding has added, in levels; where a number is cut, it is the
    distance of the level from the zero, and the zero's is minus the scale.
    """
    factor, zero = _learned(x, scale, zero_point, quant_min, quant_max, dims)
    rounded = lax.round(x * (1 / factor), lax.RoundingMethod.TO_NEAREST_EVEN) + zero
    low, high = rounded < quant_min, rounded > quant_max
    inside = ~(low | high)
    result = (jnp.clip(rounded, quant_min, quant_max) - zero) * factor
    cut = jnp.where(low, quant_min - zero, quant_max - zero)
    of_scale = grad * jnp.where(inside, (result - x) / factor, cut) * grad_factor
    of_zero = grad * jnp.where(inside, 0, -factor) * grad_factor
    others = tuple(d for d in range(x.ndim) if d not in dims)
    return (
        jnp.where(inside, grad, 0),
        as_dtype(jnp.sum(of_scale, others).reshape(scale.shape), scale.dtype),
        as_dtype(jnp.sum(of_zero, others).reshape(zero_point.shape), zero_point.dtype),
    )


@table.lowers(aten._fused_moving_avg_obs_fq_helper_functional.default)
def fused_moving_average(
    self: Array,
    observer_on: Array,
    fake_quant_on: Array,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Array, ...]:
    """The rounded numbers, which are within, and running ranges, scales and zeros, changed if `observer_on`.

    The first range is taken as it is: running ones are infinite then.
    """
    axes = tuple(d for d in range(self.ndim) if not per_row_fake_quant or d != ch_axis)
    ends = [
        jnp.reshape(as_dtype(end(self, axes), old.dtype), old.shape)
        for end, old in ((jnp.min, running_min), (jnp.max, running_max))
    ]
    low, high = (
        jnp.where(jnp.isinf(old), new, old + as_dtype(averaging_const, old.dtype) * (new - old))
        for new, old in zip(ends, (running_min, running_max), strict=True)
    )
    on = lax.reshape(observer_on, ()) != 0
    low, high = jnp.where(on, low, running_min), jnp.where(on, high, running_max)
    on = lax.reshape(fake_quant_on, ()) != 0
    factor, zero = _chosen(low, high, quant_min, quant_max, symmetric_quant)
    factor = jnp.where(on, as_dtype(factor, scale.dtype).reshape(scale.shape), scale)
    zero = jnp.where(on, as_dtype(zero, zero_point.dtype).reshape(zero_point.shape), zero_point)
    if per_row_fake_quant:
        wide = fake_quantize_per_channel(self, factor, zero, ch_axis, quant_min, quant_max)
        enabled = lax.broadcast(on, self.shape)
        result = lax.select(enabled, wide[0], self), wide[1] | ~enabled
    else:
        result = fake_quantize_per_tensor_of_tensors(
            self, factor, zero, fake_quant_on, quant_min, quant_max
        )
    return *result, low, high, factor, zero


# Scales below this are not used: their inverses are out of float16's range.
_LEAST_SCALE = 6.1e-5


def _chosen(
    low: Array, high: Array, quant_min: int, quant_max: int, symmetric: bool
) -> tuple[Array, Array]:
    """Scales (float64) and zeros (float64) for ranges, as PyTorch's `ChooseQuantizationParams`."""
    half, levels = (quant_max - quant_min) // 2, quant_max - quant_min
    both = (low < 0) & (high > 0) & symmetric
    widest = jnp.maximum(
        jnp.abs(low / as_dtype(half + 1, low.dtype)), jnp.abs(high / as_dtype(half, high.dtype))
    )
    low = jnp.minimum(jnp.where(both, -widest * (half + 1), low), 0)
    high = jnp.maximum(jnp.where(both, widest * half, high), 0)
    scale = (high.astype(jnp.float64) - low.astype(jnp.float64)) / levels
    single = scale.astype(jnp.float32)
    scale = jnp.where((single == 0) | jnp.isinf(1 / single), 0.1, scale)
    small = scale < _LEAST_SCALE
    more = jnp.where(small, _LEAST_SCALE / scale, 1.0)
    scale = jnp.where(small, _LEAST_SCALE, scale)
    low, high = low.astype(jnp.float64) * more, high.astype(jnp.float64) * more
    from_low, from_high = quant_min - low / scale, quant_max - high / scale
    less_lost = abs(quant_min) - jnp.abs(low / scale) < abs(quant_max) - jnp.abs(high / scale)
    zero = jnp.where(less_lost, from_low, from_high)
    zero = jnp.where(both, (quant_min + quant_max) / 2, zero)
    rounded = lax.round(zero, lax.RoundingMethod.TO_NEAREST_EVEN)
    return scale, jnp.clip(rounded, quant_min, quant_max)
