"""Lowerings of ops that read or write at indices given by tensors of integers.

What every rule here keeps:
    indices     `index`, `index_put`, `take` and `put` count negative ones from the end. One out of range
                is an error, which `tensor/checks/bounds.py` raises: what is read there is thrown away,
                what is written there is dropped.
    accumulate  float16 and bfloat16 add up in float32 and are rounded once; bools add up by `or`.
    duplicates  where an index is written to twice without accumulation, either write may last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import INT32, INT64, at_least_1d, wrapped
from torch_pjrt.lowering.promote import opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array
How = Literal["set", "add", "mul", "min", "max"]

table = LoweringTable("indexing")

IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS
_SCATTER: dict[str, Callable[..., Array]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}


def index_dtype(sizes: Sequence[int]) -> np.dtype:
    """The narrowest dtype for indices along dims of these sizes: int32 wherever that is enough."""
    return INT32 if all(size < 2**31 for size in sizes) else INT64


def positions(
    index: Array, size: int, dtype: np.dtype | None = None, negative: bool = True
) -> Array:
    """`index` as positions from the start of a dim of this size; negative indices count from the end."""
    index = lax.convert_element_type(index, dtype or index_dtype((size,)))
    if not negative:
        return index
    return lax.select(
        lax.lt(index, lax.full_like(index, 0)),
        lax.add(index, lax.full_like(index, size)),
        index,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What a list of index tensors selects.

    dims       the indexed dims.
    positions  [*batch, len(dims)]: where to look along each of them.
    shape      the shape of what is selected.
    window     the dims of that shape that are whole dims of the tensor.
    """

    dims: tuple[int, ...]
    positions: Array
    shape: tuple[int, ...]
    window: tuple[int, ...]

    @classmethod
    def of(
        cls, shape: Sequence[int], indices: Sequence[Array | None], negative: bool = True
    ) -> Selection:
        """The dims of the indices stand first, or where the indexed dims stood if neighbours."""
        dims = tuple(dim for dim, index in enumerate(indices) if index is not None)
        dtype = index_dtype([shape[dim] for dim in dims])
        arrays = [
            positions(index, shape[dim], dtype, negative)
            for dim, index in enumerate(indices)
            if index is not None
        ]
        batch = np.broadcast_shapes(*(a.shape for a in arrays))
        columns = [
            lax.broadcast_in_dim(a, (*batch, 1), range(len(batch) - a.ndim, len(batch)))
            for a in arrays
        ]
        neighbours = dims[-1] - dims[0] + 1 == len(dims)
        first = dims[0] if neighbours else 0
        rest = [size for dim, size in enumerate(shape) if dim not in dims]
        selected = (*rest[:first], *batch, *rest[first:])
        window = (*range(first), *range(first + len(batch), len(selected)))
        column = columns[0] if len(columns) == 1 else lax.concatenate(columns, len(batch))
        return cls(dims, column, selected, window)

    def read(self, x: Array) -> Array:
        if 0 in self.shape:
            return lax.full(self.shape, 0, x.dtype)
        sizes = tuple(1 if dim in self.dims else size for dim, size in enumerate(x.shape))
        numbers = lax.GatherDimensionNumbers(self.window, self.dims, self.dims)
        return lax.gather(x, self.positions, numbers, sizes, mode=IN_BOUNDS)

    def write(self, x: Array, values: Array, how: How) -> Array:
        """`values` broadcast to the selected shape."""
        if 0 in self.shape:
            return x
        lead = len(self.shape) - values.ndim
        values = lax.broadcast_in_dim(values, self.shape, range(lead, len(self.shape)))
        return scattered(
            x,
            self.positions,
            values,
            lax.ScatterDimensionNumbers(self.window, self.dims, self.dims),
            how,
        )


def scattered(
    x: Array, where: Array, values: Array, numbers: lax.ScatterDimensionNumbers, how: How
) -> Array:
    """`x` with `values` written into it, or folded into it, in the dtype that sums run in."""
    dtype = x.dtype
    if dtype == np.bool_:
        how = {"add": "max", "mul": "min"}.get(how, how)  # type: ignore[assignment]
    wide = opmath(dtype) if how in ("add", "mul") else dtype
    result = _SCATTER[how](
        lax.convert_element_type(x, wide),
        where,
        lax.convert_element_type(values, wide),
        numbers,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )
    return lax.convert_element_type(result, dtype)


@table.lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(self: Array, indices: Sequence[Array | None]) -> Array:
    return Selection.of(self.shape, indices).read(self)


@table.lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    self: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    how = "add" if accumulate else "set"
    return Selection.of(self.shape, indices).write(self, values, how)


@table.lowers(aten.take.default)
def take(self: Array, index: Array) -> Array:
    return Selection.of((self.size,), [index]).read(lax.reshape(self, (self.size,)))


@table.lowers(aten.put.default)
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    flat = lax.reshape(self, (self.size,))
    values = lax.reshape(source, index.shape)
    written = Selection.of(flat.shape, [index]).write(flat, values, "add" if accumulate else "set")
    return lax.reshape(written, self.shape)


def along_dim(x: Array, dim: int, index: Array) -> Selection:
    """What a vector of indices along `dim` selects; a single index counts as a vector of one."""
    indices: list[Array | None] = [None] * dim
    return Selection.of(x.shape, [*indices, at_least_1d(index)], negative=False)


@table.lowers(aten.index_select.default)
def index_select(self: Array, dim: int, index: Array) -> Array:
    dim = wrapped(dim, self.ndim)
    if not self.ndim:
        return self
    return along_dim(self, dim, index).read(self)
