"""Lowerings between an image, or a row, and the windows that slide over it."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from torch_pjrt.lowering.dims import wrapped
from torch_pjrt.lowering.promote import opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("patches")

# An overlap-add of up to so many shifted copies is spelt out; more of them are scattered.
MANY = 32


def _windows(x: Array, dim: int, n_windows: int, size: int, dilation: int, stride: int) -> Array:
    """Dim `dim` becomes two: the position in the window, and the window."""
    if dilation == 1 and stride == size and x.shape[dim] == n_windows * size:
        shape = (*x.shape[:dim], n_windows, size, *x.shape[dim + 1 :])
        order = list(range(len(shape)))
        order[dim], order[dim + 1] = dim + 1, dim
        return lax.transpose(lax.reshape(x, shape), order)
    span = (n_windows - 1) * stride + 1
    slices = [
        lax.slice_in_dim(x, i * dilation, i * dilation + span, stride=stride, axis=dim)
        for i in range(size)
    ]
    return lax.concatenate([lax.expand_dims(part, (dim,)) for part in slices], dim)


def _columns(
    x: Array,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """[N, C, H, W] -> [N, C kH kW, number of windows]. One dim after the other: kH + kW slices."""
    n, channels = x.shape[:2]
    config = [(0, 0, 0), (0, 0, 0), *((p, p, 0) for p in padding)]
    x = lax.pad(x, x.dtype.type(0), config) if any(padding) else x
    counts = [
        (size - step * (width - 1) - 1) // hop + 1
        for size, width, step, hop in zip(x.shape[2:], kernel_size, dilation, stride, strict=True)
    ]
    x = _windows(x, 3, counts[1], kernel_size[1], dilation[1], stride[1])
    x = _windows(x, 2, counts[0], kernel_size[0], dilation[0], stride[0])
    x = lax.transpose(x, (0, 1, 2, 4, 3, 5))
    return lax.reshape(x, (n, channels * kernel_size[0] * kernel_size[1], counts[0] * counts[1]))


@table.lowers(aten.im2col.default)
def im2col(
    self: Array,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    batched = self.ndim == 4
    x = self if batched else lax.expand_dims(self, (0,))
    columns = _columns(x, kernel_size, dilation, padding, stride)
    return columns if batched else lax.squeeze(columns, (0,))


@table.lowers(aten.col2im.default)
def col2im(
    self: Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """The transpose of `im2col`: what windows share is added up, in float32 for 16-bit dtypes."""
    batched = self.ndim == 3
    columns = self if batched else lax.expand_dims(self, (0,))
    wide = opmath(self.dtype)
    channels = columns.shape[1] // (kernel_size[0] * kernel_size[1])
    image = jax.ShapeDtypeStruct((columns.shape[0], channels, *output_size), wide)
    transposed = jax.linear_transpose(
        lambda x: _columns(x, kernel_size, dilation, padding, stride), image
    )
    (x,) = transposed(lax.convert_element_type(columns, wide))
    x = lax.convert_element_type(x, self.dtype)
    return x if batched else lax.squeeze(x, (0,))


@table.lowers(aten.unfold_backward.default)
def unfold_backward(
    grad_in: Array, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> Array:
    """Windows, which are the last dim, are added up where they came from."""
    if not input_sizes:
        return lax.reshape(grad_in, ())
    dim = wrapped(dim, len(input_sizes))
    n_windows, wide = grad_in.shape[dim], opmath(grad_in.dtype)
    # [*, window, position in the window, *]
    order = [*range(dim + 1), grad_in.ndim - 1, *range(dim + 1, grad_in.ndim - 1)]
    x = lax.transpose(lax.convert_element_type(grad_in, wide), order)
    n_shifts = -(-size // step)
    if n_shifts > MANY and n_windows > MANY:
        x = _scattered(x, dim, step, input_sizes)
    else:
        x = _overlapped(x, dim, step, n_shifts)
        x = _fitted(x, dim, input_sizes[dim])
    return lax.convert_element_type(x, grad_in.dtype)


def _padded(x: Array, dim: int, before: int, after: int) -> Array:
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (before, after, 0)
    return lax.pad(x, x.dtype.type(0), config)


def _fitted(x: Array, dim: int, size: int) -> Array:
    return _padded(x, dim, 0, size - x.shape[dim])


def _overlapped(x: Array, dim: int, step: int, n_shifts: int) -> Array:
    """Each window is cut into blocks of `step`; blocks that fall on one another are added up."""
    n_windows = x.shape[dim]
    x = _fitted(x, dim + 1, n_shifts * step)
    total = None
    for i in range(n_shifts):
        block = lax.slice_in_dim(x, i * step, (i + 1) * step, axis=dim + 1)
        block = _padded(block, dim, i, n_shifts - 1 - i)
        total = block if total is None else lax.add(total, block)
    assert total is not None
    shape = (*x.shape[:dim], (n_windows + n_shifts - 1) * step, *x.shape[dim + 2 :])
    return lax.reshape(total, shape)


def _scattered(x: Array, dim: int, step: int, sizes: Sequence[int]) -> Array:
    starts = lax.iota("int32", x.shape[dim]) * step
    # Each update is a whole window, which lies along `dim` from its start on.
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(d for d in range(x.ndim) if d != dim),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(dim,),
    )
    return lax.scatter_add(
        lax.full(tuple(sizes), 0, x.dtype),
        lax.expand_dims(starts, (1,)),
        x,
        numbers,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
