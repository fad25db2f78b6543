"""Lowerings of enlarging and shrinking by interpolation, and its backwards.

Every kind works dim by dim: an element of the result is a weighted sum of a few elements of the
input. Which ones, and their weights, follow from the sizes alone: they are constants of the program.
A backward is the transposition of its forward.

    scales         PyTorch computes positions from them where they are given, else from the sizes.
    arithmetic     of values and positions runs in float32, in float64 for float64.
    align_corners  puts the first and last elements at the very ends of both dims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.lowering.terms import Terms, along_terms, bytes_along
from torch_pjrt.overloads import aten

Array = jax.Array
Sizes = Sequence[int]
Scale = float | None
Kind = Callable[[int, int, Scale, np.dtype], Terms]

CUBIC = -0.75  # the slope parameter of the convolution kernel

table = LoweringTable("resample")


def spacing(size: int, count: int, scale: Scale, align_corners: bool, dtype: np.dtype) -> Any:
    """How far apart in the input two results are."""
    if align_corners:
        return dtype.type(size - 1) / dtype.type(count - 1) if count > 1 else dtype.type(0)
    if scale is not None and scale > 0:
        return dtype.type(1.0 / scale)
    return dtype.type(size) / dtype.type(count)


def _nearest(size: int, count: int, scale: Scale, dtype: np.dtype) -> Terms:
    """PyTorch looks at no scale where a dim keeps its size or doubles it."""
    if count in (size, 2 * size):
        scale = None
    return _floored(size, count, scale, dtype, 0)


def _nearest_exact(size: int, count: int, scale: Scale, dtype: np.dtype) -> Terms:
    return _floored(size, count, scale, dtype, 0.5)


def _floored(size: int, count: int, scale: Scale, dtype: np.dtype, shift: float) -> Terms:
    float32 = np.dtype(np.float32)
    step = spacing(size, count, scale, False, float32)
    indices = np.floor((np.arange(count, dtype=float32) + float32.type(shift)) * step)
    indices = np.minimum(indices.astype(np.int32), size - 1)
    return indices[None], np.ones((1, count), dtype)


def _positions(
    size: int, count: int, scale: Scale, dtype: np.dtype, align_corners: bool
) -> np.ndarray:
    step = spacing(size, count, scale, align_corners, dtype)
    along = np.arange(count, dtype=dtype)
    half = dtype.type(0.5)
    return along * step if align_corners else (along + half) * step - half


def _linear(align_corners: bool) -> Kind:
    def terms(size: int, count: int, scale: Scale, dtype: np.dtype) -> Terms:
        position = np.maximum(_positions(size, count, scale, dtype, align_corners), 0)
        low = np.minimum(position.astype(np.int32), size - 1)
        high = np.minimum(low + 1, size - 1)
        share = np.clip(position - low, 0, 1).astype(dtype)
        return np.stack([low, high]), np.stack([1 - share, share])

    return terms


def _cubic(align_corners: bool) -> Kind:
    def terms(size: int, count: int, scale: Scale, dtype: np.dtype) -> Terms:
        position = _positions(size, count, scale, dtype, align_corners)
        low = np.floor(position)
        share = (position - low).astype(dtype)
        indices = low.astype(np.int32) + np.arange(-1, 3, dtype=np.int32)[:, None]
        far, near = share + 1, 1 - share
        weights = [_outer(far), _inner(share), _inner(near), _outer(near + 1)]
        return np.clip(indices, 0, size - 1), np.stack(weights)

    return terms


def _inner(x: np.ndarray) -> np.ndarray:
    return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1


def _outer(x: np.ndarray) -> np.ndarray:
    return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC


# Applying them


def _resampled(x: Array, output_size: Sizes, scales: Sequence[Scale], kind: Kind) -> Array:
    rank = len(output_size)
    like = x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
    for back in range(1, rank + 1):  # the last dim first, as PyTorch
        axis = x.ndim - back
        size, count = x.shape[axis], output_size[-back]
        indices, weights = kind(size, count, scales[-back], like)
        x = along_terms(x, axis, indices, weights)
    return x


def _bytes_resampled(x: Array, output_size: Sizes, scales: Sequence[Scale], kind: Kind) -> Array:
    """Images of bytes, along the last dim first. A dim that keeps its size stays as it is."""
    for axis in (3, 2):
        size, count = x.shape[axis], output_size[axis - 2]
        if size == count:
            continue
        indices, shares = kind(size, count, scales[axis - 2], np.dtype(np.float64))
        weights = np.zeros((count, size))
        np.add.at(weights, (np.arange(count)[None], indices), shares)
        x = bytes_along(x, axis, weights)
    return x


def _forward(x: Array, output_size: Sizes, scales: Sequence[Scale], kind: Kind) -> Array:
    wide = opmath(x.dtype) if kind not in (_nearest, _nearest_exact) else x.dtype
    return as_dtype(_resampled(as_dtype(x, wide), output_size, scales, kind), x.dtype)


def _backward(
    grad: Array, output_size: Sizes, input_size: Sizes, scales: Sequence[Scale], kind: Kind
) -> Array:
    wide = as_dtype(grad, opmath(grad.dtype))
    like = jax.ShapeDtypeStruct(tuple(input_size), wide.dtype)
    (result,) = jax.linear_transpose(lambda x: _resampled(x, output_size, scales, kind), like)(wide)
    return as_dtype(result, grad.dtype)


# Rows


def _nearest_rule(rank: int, kind: Kind) -> Callable[..., Array]:
    def upsample_nearest(self: Array, output_size: Sizes, *scales: Scale, **named: Scale) -> Array:
        return _forward(self, output_size, named_scales(rank, scales, named), kind)

    return upsample_nearest


def _nearest_backward_rule(rank: int, kind: Kind) -> Callable[..., Array]:
    def upsample_nearest_backward(
        grad_output: Array, output_size: Sizes, input_size: Sizes, *scales: Scale, **named: Scale
    ) -> Array:
        return _backward(
            grad_output, output_size, input_size, named_scales(rank, scales, named), kind
        )

    return upsample_nearest_backward


def _smooth_rule(rank: int, kind: Callable[[bool], Kind]) -> Callable[..., Array]:
    def upsample(
        self: Array, output_size: Sizes, align_corners: bool, *scales: Scale, **named: Scale
    ) -> Array:
        given = named_scales(rank, scales, named)
        if self.dtype == np.uint8 and rank == 2:
            return _bytes_resampled(self, output_size, given, kind(align_corners))
        return _forward(self, output_size, given, kind(align_corners))

    return upsample


def _smooth_backward_rule(rank: int, kind: Callable[[bool], Kind]) -> Callable[..., Array]:
    def upsample_backward(
        grad_output: Array,
        output_size: Sizes,
        input_size: Sizes,
        align_corners: bool,
        *scales: Scale,
        **named: Scale,
    ) -> Array:
        given = named_scales(rank, scales, named)
        return _backward(grad_output, output_size, input_size, given, kind(align_corners))

    return upsample_backward


NAMES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


def named_scales(rank: int, given: Sequence[Scale], named: dict[str, Scale]) -> list[Scale]:
    """One for each dim; each may have been passed by position or by name, or left out."""
    values = dict(zip(NAMES[rank], given, strict=False)) | named
    return [values.get(name) for name in NAMES[rank]]


#    forward                              backward                                 dims  kind
NEAREST = [
    (aten.upsample_nearest1d,        aten.upsample_nearest1d_backward,        1, _nearest),
    (aten.upsample_nearest2d,        aten.upsample_nearest2d_backward,        2, _nearest),
    (aten.upsample_nearest3d,        aten.upsample_nearest3d_backward,        3, _nearest),
    (aten._upsample_nearest_exact1d, aten._upsample_nearest_exact1d_backward, 1, _nearest_exact),
    (aten._upsample_nearest_exact2d, aten._upsample_nearest_exact2d_backward, 2, _nearest_exact),
    (aten._upsample_nearest_exact3d, aten._upsample_nearest_exact3d_backward, 3, _nearest_exact),
]  # fmt: skip
SMOOTH = [
    (aten.upsample_linear1d,    aten.upsample_linear1d_backward,    1, _linear),
    (aten.upsample_bilinear2d,  aten.upsample_bilinear2d_backward,  2, _linear),
    (aten.upsample_trilinear3d, aten.upsample_trilinear3d_backward, 3, _linear),
    (aten.upsample_bicubic2d,   aten.upsample_bicubic2d_backward,   2, _cubic),
]  # fmt: skip

for forward, backward, rank, nearest in NEAREST:
    table.add(forward.default, _nearest_rule(rank, nearest), static=NAMES[rank])
    table.add(backward.default, _nearest_backward_rule(rank, nearest), static=NAMES[rank])
for forward, backward, rank, smooth in SMOOTH:
    table.add(forward.default, _smooth_rule(rank, smooth), static=NAMES[rank])
    table.add(backward.default, _smooth_backward_rule(rank, smooth), static=NAMES[rank])
