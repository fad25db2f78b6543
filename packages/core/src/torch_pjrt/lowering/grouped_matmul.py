"""Lowerings of products of matrices group by group, as in layers of experts.

What every rule here may assume and must keep:
    offs   where each group ends, in int32: the groups lie one after the other along one dim of a matrix.
           Nothing depends on their values but the result, so no program does.
    rest   rows or columns behind the last group are zeros in the result.
    sums   of float16 and bfloat16 run in float32 and are rounded once.

A device may compute the products in another way (`Groups`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.matmul import contracted
from torch_pjrt.lowering.promote import as_dtype
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("grouped_matmul")

# Rows of both factors are summed over, group by group.
_OVER_ROWS = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


class Groups:
    """Products of groups by XLA's ragged products: one operation on a TPU, masked elsewhere."""

    def rows(self, x: Array, weights: Array, ends: Array) -> Array:
        """Each row of `x` times the weight of its group: (rows, k) and (groups, k, n) give (rows, n)."""
        return lax.ragged_dot(x, weights, _sizes(ends))

    def sums(self, x: Array, y: Array, ends: Array) -> Array:
        """Over the rows of each group, their outer products: (rows, m) and (rows, n) give (groups, m, n)."""
        return lax.ragged_dot_general(x, y, _sizes(ends), _OVER_ROWS)


def _sizes(ends: Array) -> Array:
    return jnp.diff(ends, prepend=lax.full((), 0, ends.dtype))


def grouped_mm(
    self: Array,
    mat2: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    groups: Groups,
) -> Array:
    """What is cut into groups: the rows or columns that go with a 3-d factor, or else what is summed over."""
    dtype = self.dtype if out_dtype is None else dtypes.to_jax(out_dtype)
    if offs is None:
        result = contracted(self, mat2, 2, 1, n_batch=1)
    elif self.ndim == mat2.ndim:
        result = groups.sums(lax.transpose(self, (1, 0)), mat2, offs)
    elif self.ndim == 2:
        result = groups.rows(self, mat2, offs)
    else:
        turned = groups.rows(lax.transpose(mat2, (1, 0)), lax.transpose(self, (0, 2, 1)), offs)
        result = lax.transpose(turned, (1, 0))
    return as_dtype(result, dtype)


@table.lowers(aten._grouped_mm.default)
def _grouped_mm(
    self: Array,
    mat2: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> Array:
    return grouped_mm(self, mat2, offs, bias, out_dtype, groups=Groups())
