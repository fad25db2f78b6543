"""Lowerings of ops whose result holds the elements of the input in other positions, or repeated."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.dims import along, cut, wrapped_all
from torch_pjrt.lowering.indexing import Selection, index_dtype
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("rearrange")


@table.lowers(aten._unsafe_view.default, aten._reshape_copy.default)
def reshape(self: Array, size: Sequence[int]) -> Array:
    shape = list(size)
    if -1 in shape:
        shape[shape.index(-1)] = self.size // -prod(shape)
    return lax.reshape(self, shape)


@table.lowers(aten.roll.default)
def roll(self: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    """Without `dims` the elements move through the whole tensor, row after row."""
    if not self.size:
        return self
    if not dims:
        flat = roll(lax.reshape(self, (self.size,)), shifts, (0,))
        return lax.reshape(flat, self.shape)
    x = self
    for shift, dim in zip(shifts, wrapped_all(dims, self.ndim), strict=True):
        size = x.shape[dim]
        if split := -shift % size:
            x = lax.concatenate([cut(x, dim, split, size), cut(x, dim, 0, split)], dim)
    return x


@table.lowers(aten.flip.default)
def flip(self: Array, dims: Sequence[int]) -> Array:
    return lax.rev(self, wrapped_all(dims, self.ndim)) if self.ndim else self


@table.lowers(aten.rot90.default)
def rot90(self: Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> Array:
    first, second = wrapped_all(dims, self.ndim)
    order = list(range(self.ndim))
    order[first], order[second] = second, first
    if k % 4 == 0:
        return self
    if k % 4 == 2:
        return lax.rev(self, (first, second))
    return lax.rev(lax.transpose(self, order), (first if k % 4 == 1 else second,))


def _columns_past_rows(shape: Sequence[int]) -> Array:
    """How far each element of the last two dims lies right of the main diagonal."""
    matrix = tuple(shape[-2:])
    return lax.sub(along(matrix, 1), along(matrix, 0))


def _where(keep: Array, x: Array) -> Array:
    mask = lax.broadcast_in_dim(keep, x.shape, (x.ndim - 2, x.ndim - 1))
    return lax.select(mask, x, lax.full_like(x, 0))


@table.lowers(aten.tril.default)
def tril(self: Array, diagonal: int = 0) -> Array:
    return _where(_columns_past_rows(self.shape) <= diagonal, self)


@table.lowers(aten.triu.default)
def triu(self: Array, diagonal: int = 0) -> Array:
    return _where(_columns_past_rows(self.shape) >= diagonal, self)


def _coordinates(start: np.ndarray, length: np.ndarray, dtype: torch.dtype | None) -> Array:
    """Row and column of each element, where row `i` holds `length[i]` of them from `start[i]`."""
    out = dtypes.to_jax(dtype or torch.int64)
    n = int(length.sum())
    if not n:
        return lax.full((2, 0), 0, out)
    narrow = index_dtype((n,))
    ends = np.cumsum(length)
    filled = length > 0
    rows, first = np.arange(len(length))[filled], (ends - length)[filled]
    # Mark where each row begins: the number of marks up to an element tells which row it is in.
    begins = jax.numpy.zeros(n, narrow).at[first].set(1, mode="promise_in_bounds")
    nth = lax.cumsum(begins) - 1
    row = jax.numpy.asarray(rows.astype(narrow)).at[nth].get(mode="promise_in_bounds")
    skip = jax.numpy.asarray((start[filled] - first).astype(narrow))
    column = lax.iota(narrow, n) + skip.at[nth].get(mode="promise_in_bounds")
    return lax.convert_element_type(lax.concatenate([row[None], column[None]], 0), out)


@table.lowers(aten.tril_indices.default)
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = torch.int64
) -> Array:
    length = np.clip(np.arange(row) + 1 + offset, 0, col)
    return _coordinates(np.zeros_like(length), length, dtype)


@table.lowers(aten.triu_indices.default)
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = torch.int64
) -> Array:
    start = np.clip(np.arange(row) + offset, 0, col)
    return _coordinates(start, col - start, dtype)


@table.lowers(aten.repeat.default)
def repeat(self: Array, repeats: Sequence[int]) -> Array:
    lead = len(repeats) - self.ndim
    sizes = (*(1,) * lead, *self.shape)
    shape: list[int] = []
    kept: list[int] = []
    for dim, (times, size) in enumerate(zip(repeats, sizes, strict=True)):
        if times != 1:
            shape.append(times)
        if dim >= lead:
            kept.append(len(shape))
            shape.append(size)
    result = tuple(times * size for times, size in zip(repeats, sizes, strict=True))
    return lax.reshape(lax.broadcast_in_dim(self, shape, kept), result)


@table.lowers(aten.pixel_shuffle.default)
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    """[*, C r r, H, W] -> [*, C, H r, W r]."""
    *batch, channels, height, width = self.shape
    r = upscale_factor
    out = channels // (r * r)
    n = len(batch)
    x = lax.reshape(self, (*batch, out, r, r, height, width))
    x = lax.transpose(x, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return lax.reshape(x, (*batch, out, height * r, width * r))


@table.lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    """[*, C, H r, W r] -> [*, C r r, H, W]."""
    *batch, channels, height, width = self.shape
    r = downscale_factor
    n = len(batch)
    x = lax.reshape(self, (*batch, channels, height // r, r, width // r, r))
    x = lax.transpose(x, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return lax.reshape(x, (*batch, channels * r * r, height // r, width // r))


@table.lowers(aten.channel_shuffle.default)
def channel_shuffle(self: Array, groups: int) -> Array:
    batch, channels, *rest = self.shape
    x = lax.reshape(self, (batch, groups, channels // groups, *rest))
    x = lax.transpose(x, (0, 2, 1, *range(3, x.ndim)))
    return lax.reshape(x, self.shape)


@table.lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Array, *, output_size: int) -> Array:
    """Each index as often as `repeats` says. `output_size`, their sum, makes the shape static."""
    if not output_size:
        return lax.full((0,), 0, repeats.dtype)
    dtype = index_dtype((output_size,))
    ends = lax.cumsum(lax.convert_element_type(repeats, dtype))
    # An element lies in the segment numbered by how many segments end at or before it.
    marks = jax.numpy.zeros(output_size, dtype).at[ends[:-1]].add(1, mode="drop")
    return lax.convert_element_type(lax.cumsum(marks), repeats.dtype)


@table.lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    self: Array,
    src: Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Array:
    """`self` counts as contiguous: the strides are over its elements, row after row."""
    if not src.size:
        return self
    dtype = index_dtype((self.size,))
    where = lax.full(tuple(size), storage_offset or 0, dtype)
    for dim, step in enumerate(stride):
        where = where + along(size, dim, dtype) * step
    flat = lax.reshape(self, (self.size,))
    written = Selection.of(flat.shape, [where], negative=False).write(flat, src, "set")
    return lax.reshape(written, self.shape)
