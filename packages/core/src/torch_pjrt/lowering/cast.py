"""Lowerings of ops that change a tensor's dtype, or nothing but its place.

`cast` is also what every other kind uses to bring an operand to a dtype.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.promote import Array, as_dtype
from torch_pjrt.lowering.table import LoweringTable

aten = torch.ops.aten
table = LoweringTable("cast")


def cast(x: Any, dtype: np.dtype) -> Array:
    """`x`, a number or an array, as PyTorch converts it to `dtype`.

    A Python int that does not fit wraps around, as in `uint8_tensor + (-1)`. A float becomes a
    narrow integer by way of int32, so that -1.0 is 255 in uint8 (XLA's own conversion saturates).
    A complex number is True where either part is not 0, and else loses its imaginary part.
    """
    if not isinstance(x, (jax.Array, jax.core.Tracer)):
        return as_dtype(_number(x, dtype), dtype)
    if x.dtype.kind == "c" and dtype.kind == "b":
        return lax.ne(x, lax.full_like(x, 0, shape=()))
    if dtype.kind in "iu" and dtype.itemsize < 4 and jnp.issubdtype(x.dtype, np.floating):
        x = lax.convert_element_type(x, np.dtype(np.int32))
    return as_dtype(x, dtype)


def _number(x: Any, dtype: np.dtype) -> bool | int | float | complex:
    if isinstance(x, complex) and dtype.kind != "c":
        x = x != 0 if dtype.kind == "b" else x.real
    if dtype.kind in "iu":
        return int(np.asarray(int(x)).astype(dtype))
    return bool(x) if dtype.kind == "b" else x


@table.lowers(aten._to_copy.default)
def _to_copy(x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return x if dtype is None else cast(x, dtypes.to_jax(dtype))


@table.lowers(torch.ops.prims.convert_element_type.default)
def convert_element_type(a: Array, dtype: torch.dtype) -> Array:
    return cast(a, dtypes.to_jax(dtype))


@table.lowers(aten.clone.default, aten.lift_fresh_copy.default, aten.alias_copy.default, aten.detach_copy.default)
def clone(x: Array) -> Array:
    """The same values: arrays never change, so a copy is the array itself."""
    return x


@table.lowers(aten.copy.default)
def copy(x: Array, src: Array) -> Array:
    """`src`, broadcast to the shape of `x` and converted to its dtype."""
    src = cast(src, x.dtype)
    if src.shape == x.shape:
        return src
    extra = src.ndim - x.ndim  # PyTorch lets `src` have leading dimensions of size 1
    if extra > 0:
        src = lax.reshape(src, src.shape[extra:])
    return jnp.broadcast_to(src, x.shape)
