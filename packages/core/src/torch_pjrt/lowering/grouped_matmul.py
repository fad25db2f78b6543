"""Lowerings of products of matrices group by group, as in layers of experts.

What every rule here may assume and must keep:
    offs   where each group ends, in int32: the groups lie one after the other along one dim of a matrix.
           Nothing depends on their values but the result, so no program does.
    rest   rows or columns behind the last group are zeros in the result.
    sums   of float16 and bfloat16 run in float32 and are rounded once.

A device may compute the products in another way (`Groups`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.matmul import contracted
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Array = jax.Array

table = LoweringTable("grouped_matmul")

# Rows of both factors are summed over, group by group.
_OVER_ROWS = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


class Groups:
    """Products of groups by XLA's ragged products: one operation on a TPU, masked elsewhere.

    ends   for each group the number of the row behind its last: int32, rising.

        >>> ends = jnp.array([1, 4])  # the first row, and three rows
        >>> Groups().rows(jnp.ones((4, 2)), jnp.ones((2, 2, 3)), ends).shape
        (4, 3)
        >>> Groups().sums(jnp.ones((4, 2)), jnp.ones((4, 3)), ends).shape
        (2, 2, 3)
    """

    def rows(self, x: Array, weights: Array, ends: Array) -> Array:
        """Each row of `x` times the weight of its group: (rows, k) and (groups, k, n) give (rows, n)."""
        return _summed(partial(lax.ragged_dot, group_sizes=_sizes(ends)), x, weights)

    def sums(self, x: Array, y: Array, ends: Array) -> Array:
        """Over the rows of each group, their outer products: (rows, m) and (rows, n) give (groups, m, n)."""
        of_groups = {"group_sizes": _sizes(ends), "ragged_dot_dimension_numbers": _OVER_ROWS}
        return _summed(partial(lax.ragged_dot_general, **of_groups), x, y)


def _summed(product: Callable[..., Array], x: Array, y: Array) -> Array:
    """A product, that of 16 bits summed in 32: XLA for the CPU knows none of 16 bits that gives 32."""
    wide = opmath(x.dtype)
    if wide == x.dtype:
        return product(x, y)
    return lax.platform_dependent(
        x,
        y,
        cpu=lambda x, y: product(x.astype(wide), y.astype(wide)),
        default=partial(product, preferred_element_type=wide),
    )


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
    """What is cut into groups: the rows or columns that go with a 3-d factor, or else what is summed over.

    >>> ends = jnp.array([1, 4])
    >>> grouped_mm(jnp.ones((4, 2)), jnp.ones((2, 2, 3)), ends, groups=Groups()).shape
    (4, 3)
    """
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
    self: Float[Array, "rows inner"] | Float[Array, "groups rows inner"],
    mat2: Float[Array, "inner columns"] | Float[Array, "groups inner columns"],
    offs: Int[Array, " groups"] | None = None,
    bias: Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> Float[Array, "rows columns"] | Float[Array, "groups rows columns"]:
    return grouped_mm(self, mat2, offs, bias, out_dtype, groups=Groups())
