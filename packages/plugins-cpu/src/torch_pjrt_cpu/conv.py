"""Convolutions of images that are smaller than the kernel, as the last stages of a network have them.

XLA takes the larger operand of a convolution for its input and so swaps the two; the CPU's library does not
know the layout that results, and a plain loop runs instead, six times as long. An image that is padded
beforehand is the larger one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import LoweringTable, aten, rules

Array = jax.Array

table = LoweringTable("CPU")


class Padded(rules.Convolution):
    """Pads small images before they are convolved, and small outputs before they are brought to the input."""

    __slots__ = ()

    def correlated(self, x: Array, weight: Array) -> Array:
        if not _is_small(x, weight):
            return super().correlated(x, weight)
        padding = tuple((p, p) for p in self.padding)
        unpadded = Padded(self.stride, (0,) * len(self.padding), self.dilation, self.groups)
        return rules.Convolution.correlated(
            unpadded, _padded(x, padding, (1,) * len(padding)), weight
        )

    def to_input(self, y: Array, weight: Array, shape: Sequence[int]) -> Array:
        """The convolution of `y`, its elements `stride` apart, with the kernel turned around."""
        if y.dtype.kind in "iu" or not _is_small(y, weight):
            transposed = rules.Convolution(self.stride, self.padding, self.dilation, self.groups)
            return transposed.to_input(y, weight, shape)
        rank = len(self.stride)
        padding = []
        for size, to, kernel, stride, p, dilation in zip(
            y.shape[2:], shape[2:], weight.shape[2:], self.stride, self.padding, self.dilation,
            strict=True,
        ):  # fmt: skip
            reach = dilation * (kernel - 1)
            padding.append((reach - p, to - 1 - (size - 1) * stride + p))
        turned = lax.rev(_exchanged(weight, self.groups), range(2, 2 + rank))
        unpadded = Padded((1,) * rank, (0,) * rank, self.dilation, self.groups)
        apart = _padded(y, tuple(padding), self.stride)
        return rules.Convolution.correlated(unpadded, apart, turned)


def _is_small(x: Array, weight: Array) -> bool:
    """Whether an image has fewer elements than the kernel, so that XLA would swap the two."""
    return math.prod(x.shape[2:]) < math.prod(weight.shape[2:])


def _padded(x: Array, padding: Sequence[tuple[int, int]], apart: Sequence[int]) -> Array:
    """Zeros around the image, and between its elements where they are more than 1 `apart`.

    The barrier keeps XLA from making them part of the convolution again.
    """
    around = [(low, high, step - 1) for (low, high), step in zip(padding, apart, strict=True)]
    zero = np.zeros((), x.dtype)
    return lax.optimization_barrier(lax.pad(x, zero, [(0, 0, 0), (0, 0, 0), *around]))


def _exchanged(weight: Array, groups: int) -> Array:
    """A kernel from each group's outputs to its inputs."""
    outputs, inputs, *kernel = weight.shape
    each = lax.reshape(weight, (groups, outputs // groups, inputs, *kernel))
    order = (0, 2, 1, *range(3, each.ndim))
    return lax.reshape(lax.transpose(each, order), (groups * inputs, outputs // groups, *kernel))


for op, rule in (
    (aten.convolution.default, rules.convolution),
    (aten.convolution_overrideable.default, rules.convolution),
    (aten.convolution_backward.default, rules.convolution_backward),
    (
        aten.convolution_backward_overrideable.default,
        rules.convolution_backward_overrideable,
    ),
):
    table.add(op, partial(rule, kind=Padded))
