"""Lowerings of ops that write into a slice or diagonal, and of the backwards of reading one.

No rule here scatters: the new values are padded to the full shape, and a mask chooses.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from torch_pjrt.lowering.dims import along, wrapped
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("slice")


def _padded(x: Array, dim: int, before: int, after: int, step: int = 1) -> Array:
    """`x` with zeros around it along `dim`, and `step - 1` of them between its elements."""
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (before, after, step - 1)
    return lax.pad(x, x.dtype.type(0), config)


def _spread(x: Array, shape: Sequence[int], dim: int, positions: range) -> Array:
    """Zeros of `shape` with `x` at these indices along `dim`."""
    if not positions:
        return lax.full(tuple(shape), 0, x.dtype)
    return _padded(x, dim, positions[0], shape[dim] - 1 - positions[-1], positions.step)


def _expanded(x: Array, shape: Sequence[int]) -> Array:
    lead = len(shape) - x.ndim
    return lax.broadcast_in_dim(x, tuple(shape), range(lead, len(shape)))


def _range(size: int, start: int | None, end: int | None, step: int) -> range:
    return range(size)[slice(start, end, step)]


@table.lowers(aten.slice_scatter.default)
def slice_scatter(
    self: Array,
    src: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    dim = wrapped(dim, self.ndim)
    size = self.shape[dim]
    positions = _range(size, start, end, step)
    if not positions:
        return self
    shape = list(self.shape)
    shape[dim] = len(positions)
    src = _expanded(lax.convert_element_type(src, self.dtype), shape)
    if len(positions) == size:
        return src
    if step == 1:
        starts = [0] * self.ndim
        starts[dim] = positions[0]
        return lax.dynamic_update_slice(self, src, starts)
    new = _spread(src, self.shape, dim, positions)
    position = along(self.shape, dim)
    offset = position - positions[0]
    written = (offset >= 0) & (offset % step == 0) & (position <= positions[-1])
    return lax.select(written, new, self)


@table.lowers(aten.select_scatter.default)
def select_scatter(self: Array, src: Array, dim: int, index: int) -> Array:
    dim = wrapped(dim, self.ndim)
    shape = [size for d, size in enumerate(self.shape) if d != dim]
    src = lax.expand_dims(_expanded(lax.convert_element_type(src, self.dtype), shape), (dim,))
    starts = [0] * self.ndim
    starts[dim] = index % self.shape[dim]
    return lax.dynamic_update_slice(self, src, starts)


def _diagonal(
    src: Array, shape: Sequence[int], offset: int, dim1: int, dim2: int
) -> tuple[Array, Array]:
    """`src`, whose last dim runs along the diagonal, spread over `shape`; and where that is."""
    dim1, dim2 = wrapped(dim1, len(shape)), wrapped(dim2, len(shape))
    # The diagonal starts at row max(0, -offset) and column max(0, offset): spell it along the rows.
    above = max(0, -offset)
    new = _padded(src, src.ndim - 1, above, shape[dim1] - above - src.shape[-1])
    others = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    dims = [*others, dim1]
    order = sorted(range(len(dims)), key=dims.__getitem__)
    new = lax.broadcast_in_dim(lax.transpose(new, order), tuple(shape), sorted(dims))
    on_it = lax.eq(along(shape, dim2) - along(shape, dim1), lax.full(tuple(shape), offset, "int32"))
    return new, on_it


@table.lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Array:
    src = lax.convert_element_type(src, self.dtype)
    new, on_it = _diagonal(src, self.shape, offset, dim1, dim2)
    return lax.select(on_it, new, self)


@table.lowers(aten.select_backward.default)
def select_backward(grad_output: Array, input_sizes: Sequence[int], dim: int, index: int) -> Array:
    """`index` may be a number on the device, which is not negative then."""
    dim = wrapped(dim, len(input_sizes))
    grad = lax.expand_dims(grad_output, (dim,))
    if not isinstance(index, int):
        zeros = lax.full(tuple(input_sizes), 0, grad.dtype)
        return lax.dynamic_update_slice_in_dim(zeros, grad, index.astype("int32"), dim)
    position = index % input_sizes[dim]
    return _padded(grad, dim, position, input_sizes[dim] - 1 - position)


def added_at(x: Array, new: Array, dim: int, position: int | Array) -> Array:
    """`x` with `new`, which lacks the dim, added at one index of it, from 0 on."""
    position = lax.convert_element_type(position, "int32")
    new = lax.expand_dims(new, (dim,))
    there = lax.dynamic_slice_in_dim(x, position, 1, dim)
    return lax.dynamic_update_slice_in_dim(x, there + new, position, dim)


@table.lowers(aten.slice_backward.default)
def slice_backward(
    grad_output: Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Array:
    dim = wrapped(dim, len(input_sizes))
    positions = _range(input_sizes[dim], start, end, step)
    return _spread(grad_output, input_sizes, dim, positions)


@table.lowers(aten.diagonal_backward.default)
def diagonal_backward(
    grad_output: Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Array:
    new, on_it = _diagonal(grad_output, input_sizes, offset, dim1, dim2)
    return lax.select(on_it, new, lax.full_like(new, 0))
