"""Lowerings of ops that look up values in an ordered or unordered list of others."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import INT32, INT64
from torch_pjrt.lowering.promote import promoted
from torch_pjrt.lowering.scatter import taken_along
from torch_pjrt.lowering.sort import sorted_along
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("search")

# Up to so many boundaries it is cheaper to compare with each of them than to search by halves.
FEW = 64


def _goes_right(boundary: Array, value: Array, right: bool) -> Array:
    """Whether `value` belongs to the right of `boundary`. A nan goes to the very right."""
    holds = lax.gt(boundary, value) if right else lax.ge(boundary, value)
    return lax.bitwise_not(holds)


def _position(boundaries: Array, values: Array, right: bool) -> Array:
    """For each row of values, how many boundaries of the same row lie left of each; int32."""
    n_rows, size = boundaries.shape
    shape = (n_rows, values.shape[1])
    if size <= FEW:
        wide = (*shape, size)
        edges = lax.broadcast_in_dim(boundaries, wide, (0, 2))
        beyond = _goes_right(edges, lax.broadcast_in_dim(values, wide, (0, 1)), right)
        return lax.reduce_sum(lax.convert_element_type(beyond, INT32), (2,))

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = lax.div(lax.add(low, high), lax.full_like(low, 2))
        edge = taken_along(boundaries, 1, lax.min(middle, lax.full_like(low, size - 1)))
        beyond = _goes_right(edge, values, right) & lax.lt(low, high)
        return (
            lax.select(beyond, lax.add(middle, lax.full_like(low, 1)), low),
            lax.select(beyond, high, middle),
        )

    steps = size.bit_length()
    start = (lax.full(shape, 0, INT32), lax.full(shape, size, INT32))
    return lax.fori_loop(0, steps, halve, start)[0]


def _searched(boundaries: Any, values: Any, right: bool, out_int32: bool) -> Array:
    """`values` has the leading dims of `boundaries`, unless that is one vector for all of them."""
    (edges, x), _ = promoted((boundaries, values))
    shape = x.shape
    if not x.size:
        return lax.full(shape, 0, INT32 if out_int32 else INT64)
    n_rows = edges.size // edges.shape[-1] if edges.shape[-1] else 1
    if edges.ndim == 1 or not edges.shape[-1]:
        edges = lax.reshape(edges, (1, edges.shape[-1]))
        n_rows = 1
    else:
        edges = lax.reshape(edges, (n_rows, edges.shape[-1]))
    positions = _position(edges, lax.reshape(x, (n_rows, x.size // n_rows)), right)
    return lax.convert_element_type(lax.reshape(positions, shape), INT32 if out_int32 else INT64)


@table.lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    sorted_sequence: Array,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    if sorter is not None:
        sorted_sequence = taken_along(sorted_sequence, sorted_sequence.ndim - 1, sorter)
    return _searched(sorted_sequence, self, right or side == "right", out_int32)


@table.lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    self: Any, boundaries: Array, *, out_int32: bool = False, right: bool = False
) -> Array:
    return _searched(boundaries, self, right, out_int32)


@table.lowers(aten._convert_indices_from_coo_to_csr.default)
def convert_indices_from_coo_to_csr(self: Array, size: int, *, out_int32: bool = False) -> Array:
    """Where each of `size` rows begins in a list of rows in order, and where the last one ends."""
    rows = lax.iota(self.dtype, size + 1)
    return _searched(self, rows, False, out_int32)


@table.lowers(aten._convert_indices_from_csr_to_coo.default)
def convert_indices_from_csr_to_coo(
    crow_indices: Array, col_indices: Array, *, out_int32: bool = False, transpose: bool = False
) -> Array:
    """(rows, columns) of each value, for a matrix or a batch: the batch's indices come first then.

    `transpose` exchanges rows and columns.
    """
    dtype = INT32 if out_int32 else INT64
    *batch, n = col_indices.shape
    ends = crow_indices[..., 1:]
    numbers = lax.broadcasted_iota(ends.dtype, (*batch, n), len(batch))
    rows = _searched(ends, numbers, True, out_int32)
    columns = lax.convert_element_type(col_indices, dtype)
    positions = [lax.broadcasted_iota(dtype, (*batch, n), i) for i in range(len(batch))]
    positions += [columns, rows] if transpose else [rows, columns]
    return lax.concatenate([lax.reshape(p, (1, p.size)) for p in positions], 0)


@table.lowers(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(
    elements: Any = None,
    test_elements: Any = None,
    *,
    assume_unique: bool = False,
    invert: bool = False,
    element: Any = None,
    test_element: Any = None,
) -> Array:
    elements = element if elements is None else elements
    test_elements = test_element if test_elements is None else test_elements
    (x, tests), _ = promoted((elements, test_elements))
    if not (x.size and tests.size):
        return lax.full(x.shape, invert)
    flat, tests = lax.reshape(x, (x.size,)), lax.reshape(tests, (tests.size,))
    if tests.size <= FEW:
        shape = (flat.size, tests.size)
        equal = lax.eq(
            lax.broadcast_in_dim(flat, shape, (0,)), lax.broadcast_in_dim(tests, shape, (1,))
        )
        found = lax.reduce_or(equal, (1,))
    else:
        ordered, _ = sorted_along(tests, 0)
        positions = _position(
            lax.reshape(ordered, (1, tests.size)), lax.reshape(flat, (1, x.size)), False
        )
        last = np.int32(tests.size - 1)
        near = lax.min(lax.reshape(positions, (x.size,)), lax.full((x.size,), last))
        found = lax.eq(taken_along(ordered, 0, near), flat)
    found = lax.reshape(found, x.shape)
    return lax.bitwise_not(found) if invert else found
