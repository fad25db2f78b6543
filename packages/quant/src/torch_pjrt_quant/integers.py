"""Products of int8 that add up in int32, as PyTorch's operators with rules: no operand is made wide.

    product_int8        (*, rows, inner) by (*, columns, inner): int32 (*, rows, columns)
    convolution_int8    images or sequences by kernels, in any number of dims; int32

On CPU, XLA multiplies int8 fast from a few rows on, but convolves it slowly, and GPUs' libraries convolve it
with few layouts: so there a convolution is one product of patches. TPUs convolve int8 as it is. (What a batch
of products takes is made int32 on CPU. It is faster than a loop over them or float32 all the same.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor

from torch_pjrt.extend import lowers
from torch_pjrt_quant import rules

Array = jax.Array


@torch.library.custom_op("torch_pjrt_quant::product_int8", mutates_args=())
def product_int8(x: Tensor, other: Tensor) -> Tensor:
    """`x @ other.mT` of int8, added up in int32; `other` is a matrix or has the batch dims of `x`."""
    return (x.long() @ other.long().mT).int()


@product_int8.register_fake
def _(x: Tensor, other: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], other.shape[-2], dtype=torch.int32)


@lowers(product_int8._opoverload)
def _product(x: Array, other: Array) -> Array:
    if other.ndim == 2:
        y = rules.many_integers(x.reshape(-1, x.shape[-1]), other)
        return y.reshape(*x.shape[:-1], other.shape[0])
    batch = tuple(range(x.ndim - 2))
    dims = (((x.ndim - 1,), (x.ndim - 1,)), (batch, batch))
    return lax.dot_general(x, other, dims, preferred_element_type=jnp.int32)


@torch.library.custom_op("torch_pjrt_quant::convolution_int8", mutates_args=())
def convolution_int8(
    x: Tensor,
    weight: Tensor,
    zero: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """A convolution of int8, added up in int32: (batch, channels, *) by (channels, channels / groups, *).

    zero    int8 of one element: what stands for 0 in `x`, and so is around it. It is not subtracted.
    """
    around = [n for p in reversed(padding) for n in (p, p)]
    padded = torch.nn.functional.pad(x.double() - zero.double(), around) + zero.double()
    return torch.convolution(
        padded, weight.double(), None, stride, [0] * len(stride), dilation, False, [0], groups
    ).int()


@convolution_int8.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    zero: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(
            x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    return x.new_empty(x.shape[0], weight.shape[0], *sizes, dtype=torch.int32)


@lowers(convolution_int8._opoverload)
def _convolution(
    x: Array,
    weight: Array,
    zero: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    around = [(0, 0, 0), (0, 0, 0), *((p, p, 0) for p in padding)]
    padded = lax.pad(x, zero.reshape(()), around)

    def direct(x: Array, weight: Array) -> Array:
        return lax.conv_general_dilated(
            x,
            weight,
            stride,
            [(0, 0)] * len(stride),
            rhs_dilation=dilation,
            feature_group_count=groups,
            preferred_element_type=jnp.int32,
        )

    def by_patches(x: Array, weight: Array) -> Array:
        return _product_of_patches(x, weight, stride, dilation, groups)

    return lax.platform_dependent(padded, weight, tpu=direct, default=by_patches)


def _product_of_patches(
    x: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Array:
    """One product with all patches of the padded images: (batch, *sizes, groups, patch) by the weight."""
    kernel = weight.shape[2:]
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, d, k, s in zip(x.shape[2:], dilation, kernel, stride, strict=True)
    ]
    last = jnp.moveaxis(x, 1, -1)
    batch, channels = last.shape[0], last.shape[-1]
    inner = channels // groups
    positions = itertools.product(*map(range, kernel))
    parts = []
    for position in positions:
        begin = [p * d for p, d in zip(position, dilation, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, sizes, stride, strict=True)]
        part = lax.slice(last, [0, *begin, 0], [batch, *end, channels], [1, *stride, 1])
        parts.append(part.reshape(batch, *sizes, groups, inner))
    n_positions = math.prod(kernel)
    # Groups, channels of each, inner, positions.
    rows = weight.reshape(groups, -1, inner, n_positions)
    if (
        inner == 1 and groups > 1
    ):  # products of single numbers, which are added up where they are made
        y = sum(
            part.astype(jnp.int32) * rows[:, :, 0, i].astype(jnp.int32)
            for i, part in enumerate(parts)
        )
    else:
        patches = jnp.concatenate(parts, -1).reshape(-1, groups, n_positions * inner)
        flat = jnp.moveaxis(rows, 3, 2).reshape(groups, -1, n_positions * inner)
        if groups == 1:
            y = rules.enough_rows(patches[:, 0], flat[0])
        else:
            dims = (((2,), (2,)), ((1,), (0,)))
            y = lax.dot_general(patches, flat, dims, preferred_element_type=jnp.int32)
            y = jnp.moveaxis(y, 0, 1)
    return jnp.moveaxis(jnp.reshape(y, (batch, *sizes, weight.shape[0])), -1, 1)
