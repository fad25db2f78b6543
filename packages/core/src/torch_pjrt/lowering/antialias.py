"""Lowerings of resampling with antialiasing, and its backwards.

Each element of the result is a weighted mean of the elements around its position: of more of them the more
an image shrinks, so that none is left out. Which ones, and their weights, follow from the sizes alone:
they are constants of the program. Both directions gather; none scatters.

    scales         PyTorch computes positions from them where they are given, else from the sizes.
    align_corners  changes the distance of positions, but not where they start: so PyTorch.
    arithmetic     runs in float32, in float64 for float64; of bytes in integers, as the CPU's and Pillow's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.resample import (
    NAMES,
    Scale,
    Sizes,
    named_scales,
    spacing,
)
from torch_pjrt.lowering.table import LoweringTable, Rule
from torch_pjrt.lowering.terms import along_terms, bytes_along, terms_of
from torch_pjrt.overloads import aten

Array = jax.Array

KEYS = -0.5  # the slope parameter of the cubic filter, unlike that without antialiasing

table = LoweringTable("antialias")


@dataclass(frozen=True)
class Filter:
    """What a neighbour counts by its distance; nothing beyond `reach`."""

    reach: int
    weight: Callable[[np.ndarray], np.ndarray]


def _triangle(x: np.ndarray) -> np.ndarray:
    return 1 - x


def _cubic(x: np.ndarray) -> np.ndarray:
    near = ((KEYS + 2) * x - (KEYS + 3)) * x * x + 1
    return np.where(x < 1, near, ((KEYS * x - 5 * KEYS) * x + 8 * KEYS) * x - 4 * KEYS)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.sinc(x) * np.sinc(x / 3)


LINEAR, CUBIC, LANCZOS = Filter(1, _triangle), Filter(2, _cubic), Filter(3, _lanczos)


def _weights(
    size: int, count: int, scale: Scale, dtype: np.dtype, align_corners: bool, kind: Filter
) -> np.ndarray:
    """A row for each element of the result, a column for each of the input."""
    apart = spacing(size, count, scale, align_corners, dtype)
    stretch = max(float(apart), 1.0)
    center = (float(apart) * (np.arange(count) + 0.5)).astype(dtype).astype(np.float64)[:, None]
    support = float(dtype.type(kind.reach * stretch))
    first = np.maximum(np.trunc(center - support + 0.5), 0)
    last = np.minimum(np.trunc(center + support + 0.5), size)
    indices = np.arange(size)[None, :]
    distance = (indices - center).astype(dtype) + 0.5
    distance = np.abs((distance * dtype.type(1 / stretch)).astype(dtype)).astype(np.float64)
    counts = (indices >= first) & (indices < last) & (distance < kind.reach)
    weights = np.where(counts, kind.weight(distance), 0)
    total = weights.sum(1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def _rule(kind: Filter) -> Rule:
    def upsample_aa(
        self: Array, output_size: Sizes, align_corners: bool, *scales: Scale, **named: Scale
    ) -> Array:
        """Along the last dim first. A dim that keeps its size is as it was, whatever its scale."""
        given = named_scales(2, scales, named)
        is_bytes = self.dtype == np.uint8
        dtype = np.dtype(np.float64) if is_bytes else opmath(self.dtype)
        x = self if is_bytes else as_dtype(self, dtype)
        for axis in (3, 2):
            size, count = x.shape[axis], output_size[axis - 2]
            if size == count:
                continue
            weights = _weights(size, count, given[axis - 2], dtype, align_corners, kind)
            x = (
                bytes_along(x, axis, weights)
                if is_bytes
                else along_terms(x, axis, *terms_of(weights))
            )
        return as_dtype(x, self.dtype)

    return upsample_aa


def _backward_rule(kind: Filter) -> Rule:
    def upsample_aa_backward(
        grad_output: Array,
        output_size: Sizes,
        input_size: Sequence[int],
        align_corners: bool,
        *scales: Scale,
        **named: Scale,
    ) -> Array:
        given = named_scales(2, scales, named)
        dtype = opmath(grad_output.dtype)
        x = as_dtype(grad_output, dtype)
        for axis in (2, 3):
            size, count = input_size[axis], output_size[axis - 2]
            weights = _weights(size, count, given[axis - 2], dtype, align_corners, kind)
            x = along_terms(x, axis, *terms_of(weights.T))
        return as_dtype(x, grad_output.dtype)

    return upsample_aa_backward


#    forward                          backward                               filter
ANTIALIASED = [
    (aten._upsample_bilinear2d_aa,    aten._upsample_bilinear2d_aa_backward, LINEAR),
    (aten._upsample_bicubic2d_aa,     aten._upsample_bicubic2d_aa_backward,  CUBIC),
    (aten._upsample_lanczos2d_aa,     aten._upsample_lanczos2d_aa_backward,  LANCZOS),
]  # fmt: skip

for forward, backward, kind in ANTIALIASED:
    table.add(forward.default, _rule(kind), static=NAMES[2])
    table.add(backward.default, _backward_rule(kind), static=NAMES[2])
