"""Lowerings of sums, means and maxima of embedding rows, bag by bag, and their backwards.

What every rule here may assume and must keep:
    indices      of all bags, one after the other; `offsets` says where each bag starts. Where their dtypes
                 differ, both and the results that count are int64, or int32 if neither is int64.
    offset2bag   the bag of each index.
    bag_size     how many indices of each bag count; zeros for sums, which need none.
    padding_idx  the row that counts for nothing; -1 for none.
    sums         of float16 and bfloat16 rows run in float32 and are rounded once.

Beside the output, the results look as on PyTorch's other accelerators, which is what its meta functions
describe: `offset2bag` always has all indices, and only maxima have `maximum_indices`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import INT32, INT64, along
from torch_pjrt.lowering.embedding import added_rows, taken_rows
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float, Integer

Array = jax.Array

SUM, MEAN, MAX = 0, 1, 2

table = LoweringTable("embedding_bag")


def _bags(n_indices: int, starts: Array) -> Array:
    """The bag of each index: how many of the other bags start at or before it."""
    begun = added_rows(
        lax.full((n_indices,), 0, INT32), starts[1:], lax.full((max(len(starts) - 1, 0),), 1, INT32)
    )
    return lax.cumsum(begun)


def _alike(indices: Array, others: Array) -> tuple[Array, Array]:
    """Both in one dtype, where they have two: int64 if one is."""
    if indices.dtype == others.dtype:
        return indices, others
    dtype = INT64 if INT64 in (indices.dtype, others.dtype) else INT32
    return as_dtype(indices, dtype), as_dtype(others, dtype)


def _column(x: Array) -> Array:
    return lax.expand_dims(x, (1,))


def _maxima(rows: Array, bags: Array, counts: Array, n_bags: int) -> tuple[Array, Array]:
    """The largest of each bag's rows, element by element, and its position among the indices; 0 if none."""
    rows = jnp.where(_column(counts), rows, -np.inf)
    largest = jax.ops.segment_max(rows, bags, n_bags, indices_are_sorted=True)
    position = along(rows.shape, 0)
    hit = (rows == taken_rows(largest, bags)) & _column(counts)
    position = jnp.where(hit, position, len(rows))
    position = jax.ops.segment_min(position, bags, n_bags, indices_are_sorted=True)
    nothing = largest == -np.inf
    return jnp.where(nothing, 0, largest), jnp.minimum(position, max(len(rows) - 1, 0))


@table.lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight: Float[Array, "rows width"],
    indices: Integer[Array, " indices"],
    offsets: Integer[Array, " offsets"],
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Float[Array, " indices"] | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[
    Float[Array, "bags width"],
    Integer[Array, " indices"],
    Integer[Array, " offsets"],
    Integer[Array, "bags width"] | Integer[Array, " 0"],
]:
    """Output, `offset2bag`, `bag_size`, and which row gave each maximum."""
    wide = opmath(weight.dtype)
    indices, offsets = _alike(indices, offsets)
    starts = offsets[:-1] if include_last_offset else offsets
    n_bags, width = len(starts), weight.shape[1]
    bags = _bags(len(indices), starts)
    rows = as_dtype(taken_rows(weight, indices), wide)
    counts = indices != padding_idx if padding_idx >= 0 else lax.full_like(indices, True, bool)
    sizes = jax.ops.segment_sum(as_dtype(counts, INT32), bags, n_bags, indices_are_sorted=True)
    maxima = lax.full((0,), 0, indices.dtype)
    if mode == MAX:
        output, positions = _maxima(rows, bags, counts, n_bags)
        if len(indices):
            chosen = taken_rows(indices, lax.reshape(positions, (positions.size,)))
            maxima = lax.reshape(chosen, (n_bags, width))
        else:
            maxima = lax.full((n_bags, width), 0, indices.dtype)
        maxima = jnp.where(_column(sizes) > 0, maxima, 0)
    else:
        if per_sample_weights is not None:
            rows = rows * _column(as_dtype(per_sample_weights, wide))
        if padding_idx >= 0:
            rows = jnp.where(_column(counts), rows, 0)
        output = jax.ops.segment_sum(rows, bags, n_bags, indices_are_sorted=True)
        if mode == MEAN:
            output = output / _column(as_dtype(jnp.maximum(sizes, 1), wide))
    sizes = lax.full_like(sizes, 0) if mode == SUM else sizes
    if include_last_offset:
        sizes = lax.pad(sizes, np.int32(0), [(0, 1, 0)])
    return (
        as_dtype(output, weight.dtype),
        as_dtype(bags, indices.dtype),
        as_dtype(sizes, indices.dtype),
        as_dtype(maxima, indices.dtype),
    )


@table.lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    grad: Float[Array, "bags width"],
    indices: Integer[Array, " indices"],
    offset2bag: Integer[Array, " indices"],
    bag_size: Integer[Array, " offsets"],
    maximum_indices: Integer[Array, "bags width"] | Integer[Array, " unused"],
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Float[Array, " indices"] | None,
    padding_idx: int = -1,
) -> Float[Array, "rows width"]:
    """A scatter-add. `scale_grad_by_freq` divides each gradient by how often its index occurs."""
    wide, width = opmath(grad.dtype), grad.shape[1]
    indices, offset2bag = _alike(indices, offset2bag)
    grads, sizes = as_dtype(grad, wide), bag_size[: len(grad)]
    zero = lax.full((num_weights, width), 0, wide)
    if mode == MAX:
        given = jnp.where(_column(sizes) > 0, grads, 0)
        total = zero.at[maximum_indices, along(grads.shape, 1)].add(given)
        return as_dtype(total, grad.dtype)
    if mode == MEAN:
        grads = grads / _column(as_dtype(jnp.maximum(sizes, 1), wide))
    rows = taken_rows(grads, offset2bag)
    if per_sample_weights is not None:
        rows = rows * _column(as_dtype(per_sample_weights, wide))
    positions = indices
    if scale_grad_by_freq:
        ones = lax.full(indices.shape, 1, wide)
        counts = added_rows(lax.full((num_weights,), 0, wide), positions, ones)
        rows = rows / _column(taken_rows(counts, positions))
    if padding_idx >= 0:
        positions = jnp.where(positions == padding_idx, num_weights, positions)
    return as_dtype(added_rows(zero, positions, rows), grad.dtype)


@table.lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    grad: Float[Array, "bags width"],
    indices: Integer[Array, " indices"],
    offsets: Integer[Array, " offsets"],
    offset2bag: Integer[Array, " indices"],
    bag_size: Integer[Array, " offsets"],
    maximum_indices: Integer[Array, "bags width"] | Integer[Array, " unused"],
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Float[Array, " indices"] | None,
    padding_idx: int = -1,
) -> Float[Array, "rows width"]:
    """Always dense: with `sparse` the call is refused, for there are no sparse tensors here."""
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@table.lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    grad: Float[Array, "bags width"],
    weight: Float[Array, "rows width"],
    indices: Integer[Array, " indices"],
    offsets: Integer[Array, " offsets"],
    offset2bag: Integer[Array, " indices"],
    mode: int,
    padding_idx: int = -1,
) -> Float[Array, " indices"]:
    """The product of each index's row with the gradient of its bag; 0 for the padding row."""
    wide = opmath(grad.dtype)
    indices, offset2bag = _alike(indices, offset2bag)
    grads = as_dtype(taken_rows(grad, offset2bag), wide)
    result = jnp.sum(grads * as_dtype(taken_rows(weight, indices), wide), 1)
    if padding_idx >= 0:
        result = jnp.where(indices == padding_idx, 0, result)
    return as_dtype(result, grad.dtype)
