"""Lowerings of table look-ups and their backwards.

What every rule here may assume and must keep:
    indices      lie in range: for others `tensor/checks/bounds.py` raises; what they read does not matter.
    padding_idx  the row that gets no gradient; -1 for none.
    sums         of float16 and bfloat16 gradients run in float32 and are rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float, Integer, Shaped

Array = jax.Array

table = LoweringTable("embedding")


def taken_rows(weight: Array, indices: Array) -> Array:
    """`weight[indices]` along dim 0."""
    rest = weight.shape[1:]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(indices.ndim, indices.ndim + len(rest))),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    positions = lax.expand_dims(indices, (indices.ndim,))
    return lax.gather(
        weight, positions, numbers, (1, *rest), mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS
    )


def added_rows(zero: Array, indices: Array, rows: Array) -> Array:
    """`zero` with each of `rows` added to the row that `indices`, of one dim, names.

    A negative index, or one past the end, adds nothing.
    """
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, rows.ndim)),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    return lax.scatter_add(
        zero,
        lax.expand_dims(indices, (1,)),
        rows,
        numbers,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )


@table.lowers(aten.embedding.default)
def embedding(
    weight: Shaped[Array, " rows *width"],
    indices: Integer[Array, "*positions"],
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Shaped[Array, "*result"]:
    return taken_rows(weight, indices)


@table.lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad_output: Float[Array, "*result"],
    indices: Integer[Array, "*positions"],
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Float[Array, " rows *width"]:
    """A scatter-add. `scale_grad_by_freq` divides each gradient by how often its index occurs."""
    wide = opmath(grad_output.dtype)
    width = grad_output.shape[indices.ndim :]
    rows = lax.reshape(as_dtype(grad_output, wide), (indices.size, *width))
    positions = lax.reshape(as_dtype(indices, np.dtype(np.int32)), (indices.size,))
    if scale_grad_by_freq:
        ones = lax.full((indices.size,), 1, wide)
        counts = taken_rows(
            added_rows(lax.full((num_weights,), 0, wide), positions, ones), positions
        )
        rows = rows / lax.expand_dims(counts, range(1, rows.ndim))
    if padding_idx >= 0:
        # An index out of range adds nothing, which costs less than zeroing its row.
        positions = lax.select(
            positions == padding_idx, lax.full_like(positions, num_weights), positions
        )
    total = added_rows(lax.full((num_weights, *width), 0, wide), positions, rows)
    return as_dtype(total, grad_output.dtype)


@table.lowers(aten.embedding_renorm.default, static=("norm_type",))
def embedding_renorm(
    self: Float[Array, "rows width"],
    indices: Integer[Array, "*positions"],
    max_norm: Any,
    norm_type: float,
) -> Float[Array, "rows width"]:
    """`self` with each row that `indices` name and whose norm exceeds `max_norm` scaled down to it."""
    named = jnp.zeros(self.shape[0], bool).at[indices.reshape(-1)].set(True)
    norms = jnp.linalg.norm(as_dtype(self, opmath(self.dtype)), norm_type, 1, keepdims=True)
    norms = as_dtype(norms, self.dtype)
    limit = as_dtype(max_norm, self.dtype)
    scale = limit / (norms + np.asarray(1e-7, self.dtype))
    return jnp.where(named[:, None] & (norms > limit), self * scale, self)
