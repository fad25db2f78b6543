"""Lowerings of ops that change a tensor's dtype, or only where it is.

`cast` is also what every other kind uses to bring an operand to a dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.promote import Array, Number, as_dtype
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten, prims

table = LoweringTable("cast")


def cast(x: Any, dtype: np.dtype) -> Array:
    """`x`, a number or an array, as PyTorch converts it to `dtype`.

    A Python int that does not fit wraps around, as in `uint8_tensor + (-1)`. A float becomes a
    narrow integer by way of int32, so that -1.0 is 255 in uint8 (XLA's own conversion saturates),
    and below 0 a wide unsigned one by way of int64.
    A complex number is True where either part is not 0, and else loses its imaginary part.
    """
    if not isinstance(x, jax.Array):  # tracers are, too
        return as_dtype(_number(x, dtype), dtype)
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = lax.ne(x, np.zeros((), x.dtype)) if dtype.kind == "b" else lax.real(x)
    if dtype.kind in "iu" and dtype.itemsize < 4 and jnp.issubdtype(x.dtype, np.floating):
        x = lax.convert_element_type(x, np.dtype(np.int32))
    if dtype.kind == "u" and dtype.itemsize >= 4 and jnp.issubdtype(x.dtype, np.floating):
        signed = np.dtype(np.int64 if dtypes.are_wide() else np.int32)
        below = lax.convert_element_type(lax.convert_element_type(x, signed), dtype)
        return lax.select(lax.lt(x, lax.full_like(x, 0)), below, lax.convert_element_type(x, dtype))
    return as_dtype(x, dtype)


def broadcast_to(x: Array, shape: Sequence[int]) -> Array:
    """`x` with PyTorch's broadcasting to `shape`."""
    if x.shape == tuple(shape):
        return x
    if x.ndim == 0:
        return lax.broadcast(x, shape)
    kept = [i for i, n in enumerate(x.shape) if n == shape[len(shape) - x.ndim + i]]
    dims = tuple(len(shape) - x.ndim + i for i in kept)
    return lax.broadcast_in_dim(lax.reshape(x, [x.shape[i] for i in kept]), shape, dims)


def _number(x: Any, dtype: np.dtype) -> Number:
    if dtype.kind == "b":
        return bool(x)
    if dtype.kind != "c":
        x = x.real
    return int(dtypes.wrapped(int(x), dtype)) if dtype.kind in "iu" else x


@table.lowers(aten._to_copy.default)
def _to_copy(x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return x if dtype is None else cast(x, dtypes.to_jax(dtype))


@table.lowers(prims.convert_element_type.default)
def convert_element_type(a: Array, dtype: torch.dtype) -> Array:
    return cast(a, dtypes.to_jax(dtype))


@table.lowers(
    aten.clone.default,
    aten.alias_copy.default,
    aten.detach_copy.default,
    aten.lift.default,
    aten.lift_fresh_copy.default,
)
def clone(x: Array) -> Array:
    """The same values: arrays never change, so a copy is the array itself."""
    return x


@table.lowers(aten.copy.default)
def copy(x: Array, src: Array) -> Array:
    """`src`, broadcast to the shape of `x` and converted to its dtype."""
    return broadcast_to(cast(src, x.dtype), x.shape)
