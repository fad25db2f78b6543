"""Lowerings of layers that bring values to mean 0 and variance 1, and of their backwards.

What every rule here keeps:
    arithmetic  runs in float32 for float16 and bfloat16.
    variance    is the mean of squared distances from the mean, in a second pass: the mean of
                squares less the square of the mean loses everything when the mean is large.
    results     an output that `output_mask` leaves out is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float

Array = jax.Array
Axes = Sequence[int]
Mask = Sequence[bool]

table = LoweringTable("norm")


def _total(x: Array, axes: Axes) -> Array:
    """The sum over `axes`, which stay as size-1 dims."""
    return lax.expand_dims(lax.reduce_sum(x, tuple(axes)), tuple(axes))


def _mean(x: Array, axes: Axes) -> Array:
    return _total(x, axes) / math.prod(x.shape[a] for a in axes)


def _statistics(x: Array, axes: Axes) -> tuple[Array, Array, Array]:
    """Mean, distances from it, and their variance."""
    mean = _mean(x, axes)
    distances = x - mean
    return mean, distances, _mean(lax.square(distances), axes)


def _inverse_deviation(variance: Array, eps: Any) -> Array:
    return lax.rsqrt(variance + as_dtype(eps, variance.dtype))


def _wide(x: Array) -> Array:
    return as_dtype(x, opmath(x.dtype))


def _saved(mean: Array, rstd: Array, input: Array, *others: Array | None) -> tuple[Array, Array]:
    """Statistics as the CPU keeps them for the backward: in 16 bits if all of the layer is."""
    if any(x is not None and x.dtype != input.dtype for x in others):
        return mean, rstd
    return as_dtype(mean, input.dtype), as_dtype(rstd, input.dtype)


def _affine(x: Array, weight: Array | None, bias: Array | None, shape: Axes) -> Array:
    """`x * weight + bias`, the two reshaped to `shape`, in the dtype of `x`."""
    if weight is not None:
        x = x * lax.reshape(as_dtype(weight, x.dtype), shape)
    if bias is not None:
        x = x + lax.reshape(as_dtype(bias, x.dtype), shape)
    return x


def _normalized_grad(g: Array, normal: Array, rstd: Array, axes: Axes) -> Array:
    """The gradient of x, for `normal = (x - mean) * rstd` and its gradient `g`."""
    return rstd * (g - _mean(g, axes) - normal * _mean(g * normal, axes))


# Layer norm


@table.lowers(aten.native_layer_norm.default)
def native_layer_norm(
    input: Float[Array, "*shape"],
    normalized_shape: Sequence[int],
    weight: Float[Array, "*normal"] | None,
    bias: Float[Array, "*normal"] | None,
    eps: Any,
) -> tuple[Float[Array, "*shape"], Float[Array, "*statistics"], Float[Array, "*statistics"]]:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean, distances, variance = _statistics(_wide(input), axes)
    rstd = _inverse_deviation(variance, eps)
    leading = (1,) * axes[0] + tuple(normalized_shape)
    y = _affine(distances * rstd, weight, bias, leading)
    return as_dtype(y, input.dtype), *_saved(mean, rstd, input, weight, bias)


@table.lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out: Float[Array, "*shape"],
    input: Float[Array, "*shape"],
    normalized_shape: Sequence[int],
    mean: Float[Array, "*statistics"],
    rstd: Float[Array, "*statistics"],
    weight: Float[Array, "*normal"] | None,
    bias: Float[Array, "*normal"] | None,
    output_mask: Mask,
) -> tuple[
    Float[Array, "*shape"] | None, Float[Array, "*normal"] | None, Float[Array, "*normal"] | None
]:
    split = input.ndim - len(normalized_shape)
    leading, axes = tuple(range(split)), tuple(range(split, input.ndim))
    x, grad = _wide(input), _wide(grad_out)
    rstd = as_dtype(rstd, x.dtype)
    normal = (x - as_dtype(mean, x.dtype)) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        g = _affine(grad, weight, None, (1,) * split + tuple(normalized_shape))
        grad_input = as_dtype(_normalized_grad(g, normal, rstd, axes), input.dtype)
    if output_mask[1]:
        like = input if weight is None else weight
        grad_weight = as_dtype(lax.reduce_sum(grad * normal, leading), like.dtype)
    if output_mask[2]:
        like = input if bias is None else bias
        grad_bias = as_dtype(lax.reduce_sum(grad, leading), like.dtype)
    return grad_input, grad_weight, grad_bias


# RMS norm: no mean is taken away


@table.lowers(aten._fused_rms_norm.default)
def _fused_rms_norm(
    input: Float[Array, "*shape"],
    normalized_shape: Sequence[int],
    weight: Float[Array, "*normal"] | None,
    eps: Any,
) -> tuple[Float[Array, "*shape"], Float[Array, "*statistics"]]:
    """`eps` of None is the smallest step of the dtype that the arithmetic runs in."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x = _wide(input)
    if eps is None:
        eps = float(jnp.finfo(x.dtype).eps)
    rstd = _inverse_deviation(_mean(lax.square(x), axes), eps)
    y = _affine(x * rstd, weight, None, (1,) * axes[0] + tuple(normalized_shape))
    return as_dtype(y, input.dtype), rstd


@table.lowers(aten._fused_rms_norm_backward.default)
def _fused_rms_norm_backward(
    grad_out: Float[Array, "*shape"],
    input: Float[Array, "*shape"],
    normalized_shape: Sequence[int],
    rstd: Float[Array, "*statistics"],
    weight: Float[Array, "*normal"] | None,
    output_mask: Mask,
) -> tuple[Float[Array, "*shape"] | None, Float[Array, "*normal"] | None]:
    split = input.ndim - len(normalized_shape)
    leading, axes = tuple(range(split)), tuple(range(split, input.ndim))
    x, grad = _wide(input), _wide(grad_out)
    rstd = as_dtype(rstd, x.dtype)
    normal = x * rstd
    grad_input = grad_weight = None
    if output_mask[0]:
        g = _affine(grad, weight, None, (1,) * split + tuple(normalized_shape))
        grad_input = as_dtype(rstd * (g - normal * _mean(g * normal, axes)), input.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = as_dtype(lax.reduce_sum(grad * normal, leading), weight.dtype)
    return grad_input, grad_weight


# Batch norm: statistics of each channel, dim 1


def _channel_axes(x: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims that are folded, and the shape that a channel's value is broadcast from."""
    return (0, *range(2, x.ndim)), (1, x.shape[1], *(1,) * (x.ndim - 2))


def _trained(
    input: Array, weight: Array | None, bias: Array | None, eps: Any
) -> tuple[Array, Array, Array, Array]:
    """Output, mean, inverse deviation and (biased) variance, with the batch's own statistics."""
    axes, shape = _channel_axes(input)
    mean, distances, variance = _statistics(_wide(input), axes)
    rstd = _inverse_deviation(variance, eps)
    scale = rstd if weight is None else rstd * lax.reshape(as_dtype(weight, rstd.dtype), shape)
    y = as_dtype(_affine(distances * scale, None, bias, shape), input.dtype)
    channels = (input.shape[1],)
    mean, rstd, variance = (lax.reshape(v, channels) for v in (mean, rstd, variance))
    return y, mean, rstd, variance


def _frozen(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    eps: Any,
) -> tuple[Array, Array, Array]:
    """Output, mean and inverse deviation, with given statistics."""
    _, shape = _channel_axes(input)
    x = _wide(input)
    mean = as_dtype(running_mean, x.dtype)
    rstd = _inverse_deviation(as_dtype(running_var, x.dtype), eps)
    scale = rstd if weight is None else rstd * as_dtype(weight, x.dtype)
    y = _affine(x - lax.reshape(mean, shape), scale, bias, shape)
    return as_dtype(y, input.dtype), mean, rstd


@table.lowers(aten._native_batch_norm_legit_functional.default)
def _native_batch_norm_legit_functional(
    input: Float[Array, "batch channels *size"],
    weight: Float[Array, " channels"] | None,
    bias: Float[Array, " channels"] | None,
    running_mean: Float[Array, " channels"],
    running_var: Float[Array, " channels"],
    training: bool,
    momentum: Any,
    eps: Any,
) -> tuple[
    Float[Array, "batch channels *size"],
    Float[Array, " channels"],
    Float[Array, " channels"],
    Float[Array, " channels"],
    Float[Array, " channels"],
]:
    """Output, mean, inverse deviation, and what the running statistics become.

    The running variance grows by the unbiased one. The new running statistics are at least float32,
    also those that came in 16 bits: so PyTorch's meta functions say, though its CPU kernel narrows them.
    """
    wide = opmath(input.dtype)
    tensors = input, weight, bias, running_mean, running_var
    old_mean, old_var = (as_dtype(v, opmath(v.dtype)) for v in (running_mean, running_var))
    if not training:
        y, mean, rstd = _frozen(input, weight, bias, running_mean, running_var, eps)
        return y, *_saved(mean, rstd, *tensors), old_mean, old_var
    y, mean, rstd, variance = _trained(input, weight, bias, eps)
    count = input.size // input.shape[1]
    unbiased = variance * (count / (count - 1) if count > 1 else math.nan)
    share = as_dtype(momentum, wide)
    new_mean = as_dtype(share * mean + (1 - share) * as_dtype(old_mean, wide), old_mean.dtype)
    new_var = as_dtype(share * unbiased + (1 - share) * as_dtype(old_var, wide), old_var.dtype)
    return y, *_saved(mean, rstd, *tensors), new_mean, new_var


@table.lowers(aten._native_batch_norm_legit.no_stats)
def _native_batch_norm_legit_no_stats(
    input: Float[Array, "batch channels *size"],
    weight: Float[Array, " channels"] | None,
    bias: Float[Array, " channels"] | None,
    training: bool,
    momentum: Any,
    eps: Any,
) -> tuple[
    Float[Array, "batch channels *size"], Float[Array, " channels"], Float[Array, " channels"]
]:
    y, mean, rstd, _ = _trained(input, weight, bias, eps)
    return y, *_saved(mean, rstd, input, weight, bias)


@table.lowers(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm_legit_no_training(
    input: Float[Array, "batch channels *size"],
    weight: Float[Array, " channels"] | None,
    bias: Float[Array, " channels"] | None,
    running_mean: Float[Array, " channels"],
    running_var: Float[Array, " channels"],
    momentum: Any,
    eps: Any,
) -> tuple[
    Float[Array, "batch channels *size"], Float[Array, " channels"], Float[Array, " channels"]
]:
    """Mean and inverse deviation are those used; the CPU kernel alone gives empty ones."""
    return _frozen(input, weight, bias, running_mean, running_var, eps)


@table.lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out: Float[Array, "batch channels *size"],
    input: Float[Array, "batch channels *size"],
    weight: Float[Array, " channels"] | None,
    running_mean: Float[Array, " channels"] | None,
    running_var: Float[Array, " channels"] | None,
    save_mean: Float[Array, " channels"] | None,
    save_invstd: Float[Array, " channels"] | None,
    train: bool,
    eps: Any,
    output_mask: Mask,
) -> tuple[
    Float[Array, "batch channels *size"] | None,
    Float[Array, " channels"] | None,
    Float[Array, " channels"] | None,
]:
    axes, shape = _channel_axes(input)
    x, grad = _wide(input), _wide(grad_out)
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, rstd = (as_dtype(v, x.dtype) for v in (save_mean, save_invstd))
    else:
        assert running_mean is not None and running_var is not None
        mean = as_dtype(running_mean, x.dtype)
        rstd = _inverse_deviation(as_dtype(running_var, x.dtype), eps)
    distances = x - lax.reshape(mean, shape)
    grad_sum = lax.reduce_sum(grad, axes)
    dotted = lax.reduce_sum(grad * distances, axes)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scale = rstd if weight is None else rstd * as_dtype(weight, x.dtype)
        rest = grad
        if train:
            count = input.size // input.shape[1]
            slope = lax.square(rstd) * dotted / count
            offset = lax.reshape(grad_sum / count, shape)
            rest = grad - offset - distances * lax.reshape(slope, shape)
        grad_input = as_dtype(rest * lax.reshape(scale, shape), input.dtype)
    like = input if weight is None else weight
    if output_mask[1]:
        grad_weight = as_dtype(dotted * rstd, like.dtype)
    if output_mask[2]:
        grad_bias = as_dtype(grad_sum, like.dtype)
    return grad_input, grad_weight, grad_bias


# Group norm: statistics of each group of channels of each example


@table.lowers(aten.native_group_norm.default)
def native_group_norm(
    input: Float[Array, "batch channels *size"],
    weight: Float[Array, " channels"] | None,
    bias: Float[Array, " channels"] | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Any,
) -> tuple[
    Float[Array, "batch channels *size"], Float[Array, "batch groups"], Float[Array, "batch groups"]
]:
    x = lax.reshape(_wide(input), (N, group, C // group, HxW))
    mean, distances, variance = _statistics(x, (2, 3))
    rstd = _inverse_deviation(variance, eps)
    y = _affine(distances * rstd, weight, bias, (1, group, C // group, 1))
    y = lax.reshape(as_dtype(y, input.dtype), input.shape)
    mean, rstd = (lax.reshape(x, (N, group)) for x in (mean, rstd))
    return y, *_saved(mean, rstd, input, weight, bias)


@table.lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad_out: Float[Array, "batch channels *size"],
    input: Float[Array, "batch channels *size"],
    mean: Float[Array, "batch groups"],
    rstd: Float[Array, "batch groups"],
    weight: Float[Array, " channels"] | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Mask,
) -> tuple[
    Float[Array, "batch channels *size"] | None,
    Float[Array, " channels"] | None,
    Float[Array, " channels"] | None,
]:
    grouped, channels = (N, group, C // group, HxW), (1, group, C // group, 1)
    x, grad = (lax.reshape(_wide(v), grouped) for v in (input, grad_out))
    mean, rstd = (lax.reshape(as_dtype(v, x.dtype), (N, group, 1, 1)) for v in (mean, rstd))
    normal = (x - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        g = _affine(grad, weight, None, channels)
        grad_input = _normalized_grad(g, normal, rstd, (2, 3))
        grad_input = lax.reshape(as_dtype(grad_input, input.dtype), input.shape)
    dtype: np.dtype = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        grad_weight = as_dtype(lax.reduce_sum(grad * normal, (0, 3)), dtype)
        grad_weight = lax.reshape(grad_weight, (C,))
    if output_mask[2]:
        grad_bias = lax.reshape(as_dtype(lax.reduce_sum(grad, (0, 3)), dtype), (C,))
    return grad_input, grad_weight, grad_bias
