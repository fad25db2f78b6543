"""Lowerings of ops that put tensors side by side.

The result has the common dtype of all inputs, those without elements included.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from torch_pjrt.lowering.dims import wrapped
from torch_pjrt.lowering.promote import promoted
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("join")


@table.lowers(aten.cat.default)
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Inputs of shape [0] are left out whatever the shape of the others, as PyTorch always did."""
    arrays, _ = promoted(tensors)
    parts = [x for x in arrays if x.shape != (0,)] or arrays[:1]
    if len(parts) == 1:
        return parts[0]
    return lax.concatenate(parts, wrapped(dim, parts[0].ndim))


@table.lowers(aten.stack.default, aten._stack.default)
def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    arrays, _ = promoted(tensors)
    dim = wrapped(dim, arrays[0].ndim + 1)
    return lax.concatenate([lax.expand_dims(x, (dim,)) for x in arrays], dim)


@table.lowers(aten.block_diag.default)
def block_diag(tensors: Sequence[Array]) -> Array:
    """Matrices on the diagonal of a matrix of zeros; a vector counts as one row."""
    arrays, dtype = promoted(tensors)
    blocks = [lax.reshape(x, (1, x.size)) if x.ndim < 2 else x for x in arrays]
    width = sum(block.shape[1] for block in blocks)
    rows: list[Array] = []
    left = 0
    for block in blocks:
        right = width - left - block.shape[1]
        rows.append(lax.pad(block, dtype.type(0), ((0, 0, 0), (left, right, 0))))
        left += block.shape[1]
    return lax.concatenate(rows, 0)
