"""Rules of PyTorch's `quantized_decomposed` operators. Their Python bodies read scales from the device.

`torch.ao.quantization.fx._decomposed` defines them, and the rules are given once that is imported. What the
results look like is what their meta functions say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_pjrt.extend import after_import, lowers
from torch_pjrt.plugin.rules import to_jax

Array = jax.Array
Rule = Callable[..., Any]

# The smallest range of a token, and of an asymmetric scale.
LEAST = 1e-5
EPSILON = torch.finfo(torch.float32).eps


def _inverse(scale: Any) -> Any:
    """Of a number, or of a tensor that is read as one: in float64, and then as float32."""
    if not isinstance(scale, jax.Array):
        return 1.0 / scale
    return (1.0 / scale.astype(jnp.float64)).astype(jnp.float32).reshape(())


def _number(x: Any) -> Any:
    return x.astype(jnp.float32).reshape(()) if isinstance(x, jax.Array) else x


def quantize_per_tensor(
    x: Array, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype
) -> Array:
    numbers = jnp.round(x.astype(jnp.float32) * _inverse(scale)) + _number(zero)
    return jnp.clip(numbers, _number(low), _number(high)).astype(to_jax(dtype))


def dequantize_per_tensor(
    x: Array,
    scale: Any,
    zero: Any,
    low: Any,
    high: Any,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Array:
    wide = x.astype(to_jax(out_dtype or torch.float32))
    scale, zero = _number(scale), _number(zero)
    if isinstance(scale, jax.Array):
        scale = scale.astype(wide.dtype)
    if isinstance(zero, jax.Array):
        zero = zero.astype(wide.dtype)
    return (wide - zero) * scale


def choose_qparams(
    x: Array, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Array, Array]:
    """Scale (float64) and zero (int64) of one element each: the range from the least to the greatest."""
    least, most = _range(x.astype(jnp.float32))
    scale = jnp.maximum((most - least) / float(high - low), jnp.float32(eps))
    zero = jnp.clip(low - jnp.round(least / scale), low, high)
    return scale.astype(jnp.float64).reshape(1), zero.astype(jnp.int64).reshape(1)


def choose_qparams_symmetric(
    x: Array, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Array, Array]:
    least, most = _range(x.astype(jnp.float32))
    half = float(high - low) / 2
    scale = jnp.maximum(jnp.maximum(-least, most) / half, jnp.float32(eps))
    zero = jnp.full((1,), 128 if dtype is torch.uint8 else 0, jnp.int64)
    return scale.astype(jnp.float64).reshape(1), zero


def _range(x: Array) -> tuple[Array, Array]:
    """The least and the greatest number, or 0, in one pass: the layer before is computed in that pass.

    (XLA's CPU has a faster reduction for either of them alone, for which it first writes `x` out as it lies,
    and reads it twice.) What a convolution gives has its channels last in memory, and is read in that order.
    """

    def wider(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        return lax.min(a[0], b[0]), lax.max(a[1], b[1])

    if x.ndim > 3:
        x = jnp.moveaxis(x, 1, -1)
    zero = jnp.float32(0)
    return lax.reduce((x, x), (zero, zero), wider, tuple(range(x.ndim)))


def choose_qparams_per_token(x: Array, dtype: torch.dtype) -> tuple[Array, Array]:
    """A scale (float64) and a zero (int64) for each row, of one element in the last dim."""
    size = jnp.max(jnp.abs(x), -1, keepdims=True)
    size = size.astype(jnp.float32) if x.dtype == jnp.float16 else size
    scale = jnp.maximum(size, jnp.asarray(LEAST, size.dtype)) / 127
    return scale.astype(jnp.float64), jnp.zeros(scale.shape, jnp.int64)


def choose_qparams_per_token_asymmetric(x: Array, dtype: torch.dtype) -> tuple[Array, Array]:
    least = jnp.minimum(jnp.min(x, -1, keepdims=True), 0)
    most = jnp.maximum(jnp.max(x, -1, keepdims=True), 0)
    scale = jnp.maximum((most - least) / 255.0, jnp.asarray(EPSILON, x.dtype))
    low, high = least / scale, most / scale
    zero = jnp.where(-128 + low + 127 + high > 0, -128 - low, 127 - high)
    zero = jnp.round(jnp.clip(zero, -128, 127))
    return scale.astype(jnp.float64), zero.astype(jnp.int64)


def quantize_per_channel(
    x: Array, scale: Array, zero: Array, axis: int, low: int, high: int, dtype: torch.dtype
) -> Array:
    scale, zero = (_along(a, axis, x.ndim) for a in (scale, zero))
    kind = jnp.promote_types(jnp.float32, scale.dtype)
    numbers = jnp.round(x.astype(kind) * (1.0 / scale).astype(kind)) + zero.astype(kind)
    return jnp.clip(numbers, low, high).astype(to_jax(dtype))


def dequantize_per_channel(
    x: Array,
    scale: Array,
    zero: Array | None,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Array:
    scale = _along(scale, axis, x.ndim)
    wide = x.astype(scale.dtype)
    if zero is not None:
        wide = wide - _along(zero, axis, x.ndim).astype(scale.dtype)
    return (wide * scale).astype(to_jax(out_dtype or torch.float32))


def _along(values: Array, axis: int, ndim: int) -> Array:
    return values.reshape([-1 if dim == axis % ndim else 1 for dim in range(ndim)])


def quantize_per_token(
    x: Array, scale: Array, zero: Array, low: int, high: int, dtype: torch.dtype
) -> Array:
    kind = jnp.promote_types(x.dtype, scale.dtype)
    numbers = x.astype(kind) * (1.0 / scale).astype(kind) + zero.astype(kind)
    return jnp.clip(jnp.round(numbers), low, high).astype(to_jax(dtype))


def dequantize_per_token(
    x: Array,
    scale: Array,
    zero: Array,
    low: int,
    high: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Array:
    return ((x.astype(scale.dtype) - zero.astype(scale.dtype)) * scale).astype(to_jax(output_dtype))


def quantize_per_channel_group(
    x: Array, scale: Array, zero: Array, low: int, high: int, dtype: torch.dtype, group_size: int
) -> Array:
    groups = x.reshape(scale.size, -1)
    scale, zero = scale.reshape(-1, 1), zero.reshape(-1, 1)
    return quantize_per_token(groups, scale, zero, low, high, dtype).reshape(x.shape)


def dequantize_per_channel_group(
    x: Array,
    scale: Array,
    zero: Array | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype = torch.float32,
) -> Array:
    groups, scale = x.reshape(scale.size, -1).astype(scale.dtype), scale.reshape(-1, 1)
    if zero is not None:
        groups = groups - zero.reshape(-1, 1).astype(scale.dtype)
    return (groups * scale).astype(to_jax(output_dtype)).reshape(x.shape)


def convert_element_type(x: Array, dtype: torch.dtype) -> Array:
    return x.astype(to_jax(dtype))


#   overload in `torch.ops.quantized_decomposed`, its rule
RULES: dict[str, Rule] = {
    "quantize_per_tensor.default": quantize_per_tensor,
    "quantize_per_tensor.tensor": quantize_per_tensor,
    "quantize_per_tensor.tensor2": quantize_per_tensor,
    "dequantize_per_tensor.default": dequantize_per_tensor,
    "dequantize_per_tensor.tensor": dequantize_per_tensor,
    "dequantize_per_tensor.tensor2": dequantize_per_tensor,
    "choose_qparams.tensor": choose_qparams,
    "choose_qparams_symmetric.tensor": choose_qparams_symmetric,
    "choose_qparams_per_token.default": choose_qparams_per_token,
    "choose_qparams_per_token_asymmetric.default": choose_qparams_per_token_asymmetric,
    "quantize_per_channel.default": quantize_per_channel,
    "dequantize_per_channel.default": dequantize_per_channel,
    "quantize_per_token.default": quantize_per_token,
    "dequantize_per_token.default": dequantize_per_token,
    "quantize_per_channel_group.default": quantize_per_channel_group,
    "dequantize_per_channel_group.default": dequantize_per_channel_group,
    "convert_element_type.no_fuse": convert_element_type,
}


def give_rules() -> None:
    """Give them once PyTorch has defined the operators. The plugin calls it when the device starts."""
    after_import("torch.ao.quantization.fx._decomposed", _give_rules)


def _give_rules(_: Any) -> None:
    for name, rule in RULES.items():
        packet, _, overload = name.partition(".")
        found = getattr(getattr(torch.ops.quantized_decomposed, packet, None), overload, None)
        if found is not None:  # another PyTorch may lack it
            lowers(found)(rule)
