"""Lowerings of convolutions and their backwards, with any number of spatial dims.

Every one of them is one of three linear maps, and JAX has each as a transposition of the first:

    correlated       (input, weight) -> output, the convolution itself
    to the input     (output, weight) -> input, which is also what a transposed convolution does
    to the weight    (output, input) -> weight

A transposed convolution swaps the parts of input and output. `output_padding` only says which of
the input sizes that give one output size is meant: a backward knows the shapes and never reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.promote import opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Num

Array = jax.Array
Sizes = Sequence[int]

table = LoweringTable("conv")


def _each(sizes: Sizes, rank: int) -> tuple[int, ...]:
    """One entry for each spatial dim, where one may stand for all."""
    return tuple(sizes) if len(sizes) == rank else (sizes[0],) * rank


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the windows of a convolution lie on its input.

    stride, padding, dilation   one number for each dim of the image, in elements; padding on both sides.
    groups                      into how many groups channels and filters are split.

    A device that computes these maps in its own way overrides `correlated`, `to_input` and `to_weight`.

        >>> windows = Convolution.of((2, 2), (1, 1), (1, 1), 1, rank=2)
        >>> image, weight = jnp.ones((1, 3, 8, 8)), jnp.ones((5, 3, 3, 3))
        >>> windows.correlated(image, weight).shape
        (1, 5, 4, 4)
        >>> windows.to_input(jnp.ones((1, 5, 4, 4)), weight, image.shape).shape
        (1, 3, 8, 8)
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, rank: int) -> Geometry:
        return cls(_each(stride, rank), _each(padding, rank), _each(dilation, rank), groups)

    def correlated(self, x: Array, weight: Array) -> Array:
        dtype = jnp.promote_types(x.dtype, weight.dtype)  # they differ where integers are widened
        return lax.conv_general_dilated(
            lax.convert_element_type(x, dtype),
            lax.convert_element_type(weight, dtype),
            window_strides=self.stride,
            padding=[(p, p) for p in self.padding],
            rhs_dilation=self.dilation,
            feature_group_count=self.groups,
        )

    def to_input(self, y: Array, weight: Array, shape: Sizes) -> Array:
        """The gradient of an input of `shape`, for one of the output."""
        return _transposed(lambda x: self.correlated(x, weight), y, shape)

    def to_weight(self, y: Array, x: Array, shape: Sizes) -> Array:
        return _transposed(lambda weight: self.correlated(x, weight), y, shape)

    def widened_shape(self, y: Array, weight: Array, output_padding: Sizes) -> tuple[int, ...]:
        """The input shape that a transposed convolution of `y` stands for."""
        sizes = [
            (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1
            for size, stride, padding, dilation, kernel, more in zip(
                y.shape[2:], self.stride, self.padding, self.dilation, weight.shape[2:],
                _each(output_padding, len(self.stride)),
                strict=True,
            )
        ]  # fmt: skip
        return (y.shape[0], weight.shape[1] * self.groups, *sizes)


def _transposed(correlated: Callable[[Array], Array], y: Array, shape: Sizes) -> Array:
    """What a linear function of an array of `shape` makes of a cotangent, 0 where `y` ends early.

    It does where `output_padding` reaches the stride (a dilation may be larger): the last windows
    of the padded size belong to no element of `y`.
    """
    if y.dtype.kind in "iu":  # JAX transposes functions of floats only; exact below 2**53
        wide = _transposed(correlated, lax.convert_element_type(y, np.float64), shape)
        return lax.convert_element_type(wide, y.dtype)
    like = jax.ShapeDtypeStruct(tuple(shape), y.dtype)
    whole = jax.eval_shape(correlated, like).shape
    (x,) = jax.linear_transpose(correlated, like)(_resized(y, whole))
    return x


def _resized(x: Array, shape: Sizes) -> Array:
    """`x` cut at the end, or with zeros there, to `shape`."""
    if x.shape == tuple(shape):
        return x
    more = [(0, to - size, 0) for size, to in zip(x.shape, shape, strict=True)]
    return lax.pad(x, np.zeros((), x.dtype), more)


@table.lowers(aten.convolution.default, aten.convolution_overrideable.default)
def convolution(
    input: Num[Array, "batch channels *size"],
    weight: Num[Array, "filters depth *kernel"],
    bias: Num[Array, " features"] | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    *,
    kind: type[Geometry] = Geometry,
) -> Num[Array, "batch features *out_size"]:
    """`kind` is how a device computes the three maps; `groups` and the rest are PyTorch's.

    The two backward rules take a `kind`, too.

    >>> image, weight = jnp.ones((1, 3, 8, 8)), jnp.ones((5, 3, 3, 3))
    >>> convolution(image, weight, None, [1], [1], [1], False, [0], 1).shape
    (1, 5, 8, 8)
    """
    rank = weight.ndim - 2
    geometry = kind.of(stride, padding, dilation, groups, rank)
    if transposed:
        shape = geometry.widened_shape(input, weight, output_padding)
        y = geometry.to_input(input, weight, shape)
    else:
        y = geometry.correlated(input, weight)
        if input.shape[1] == 0:  # of no channels PyTorch makes none, whatever the weight says
            return lax.slice_in_dim(y, 0, 0, axis=1)
    return y if bias is None else y + lax.expand_dims(bias, (0, *range(2, 2 + rank)))


def _backward(
    grad_output: Array,
    input: Array,
    weight: Array,
    geometry: Geometry,
    transposed: bool,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    grad_input = grad_weight = grad_bias = None
    if input.shape[1] == 0 and not transposed:
        shapes = (input.shape, weight.shape, weight.shape[:1])
        zeros = [lax.full(shape, 0, grad_output.dtype) for shape in shapes]
        return tuple(z if wanted else None for z, wanted in zip(zeros, output_mask, strict=True))  # type: ignore[return-value]
    if output_mask[0]:
        if transposed:
            grad_input = _resized(geometry.correlated(grad_output, weight), input.shape)
        else:
            grad_input = geometry.to_input(grad_output, weight, input.shape)
    if output_mask[1]:
        y, x = (input, grad_output) if transposed else (grad_output, input)
        grad_weight = geometry.to_weight(y, x, weight.shape)
    if output_mask[2]:
        wide = lax.convert_element_type(grad_output, opmath(grad_output.dtype))
        total = lax.reduce_sum(wide, (0, *range(2, wide.ndim)))
        grad_bias = lax.convert_element_type(total, grad_output.dtype)
    return grad_input, grad_weight, grad_bias


@table.lowers(aten.convolution_backward.default)
def convolution_backward(
    grad_output: Num[Array, "batch features *out_size"],
    input: Num[Array, "batch channels *size"],
    weight: Num[Array, "filters depth *kernel"],
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
    *,
    kind: type[Geometry] = Geometry,
) -> tuple[
    Num[Array, "batch channels *size"] | None,
    Num[Array, "filters depth *kernel"] | None,
    Num[Array, " features"] | None,
]:
    """The gradients of input, weight and bias; None where `output_mask` wants none. `groups` as in PyTorch.

    >>> image, weight = jnp.ones((1, 3, 8, 8)), jnp.ones((5, 3, 3, 3))
    >>> windows = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    >>> wanted = (True, True, True)
    >>> grads = convolution_backward(jnp.ones((1, 5, 8, 8)), image, weight, [5], *windows, wanted)
    >>> [grad.shape for grad in grads]
    [(1, 3, 8, 8), (5, 3, 3, 3), (5,)]
    """

    geometry = kind.of(stride, padding, dilation, groups, weight.ndim - 2)
    return _backward(grad_output, input, weight, geometry, transposed, output_mask)


@table.lowers(aten.convolution_backward_overrideable.default)
def convolution_backward_overrideable(
    grad_output: Num[Array, "batch features *out_size"],
    input: Num[Array, "batch channels *size"],
    weight: Num[Array, "filters depth *kernel"],
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
    *,
    kind: type[Geometry] = Geometry,
) -> tuple[
    Num[Array, "batch channels *size"] | None,
    Num[Array, "filters depth *kernel"] | None,
    Num[Array, " features"] | None,
]:
    """As `convolution_backward`, without `bias_sizes`: what PyTorch calls for the device.

    `groups` and the rest are PyTorch's.

    >>> image, weight = jnp.ones((1, 3, 8, 8)), jnp.ones((5, 3, 3, 3))
    >>> windows = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    >>> wanted = (True, False, False)
    >>> grads = convolution_backward_overrideable(
    ...     jnp.ones((1, 5, 8, 8)), image, weight, *windows, wanted
    ... )
    >>> grads[0].shape, grads[1:]
    ((1, 3, 8, 8), (None, None))
    """

    geometry = kind.of(stride, padding, dilation, groups, weight.ndim - 2)
    return _backward(grad_output, input, weight, geometry, transposed, output_mask)
