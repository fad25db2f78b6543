"""Lowerings of ops that make a tensor from a shape and numbers.

`empty` and its kin give zeros: a program has no uninitialised values. Where an op has strides, they
say how its storage is laid out and leave the values alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.promote import Array, default_dtype, is_number, number_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.lowering.versions import ARANGE_COUNTS_INTEGERS
from torch_pjrt.overloads import aten

table = LoweringTable("creation")

Shape = Sequence[int]
Dtype = torch.dtype | None


def _filled(size: Shape, value: Any, dtype: Dtype) -> Array:
    return lax.broadcast(cast(value, dtypes.to_jax(dtype or default_dtype())), size)


@table.lowers(aten.zeros.default, aten.empty.memory_format)
def zeros(size: Shape, *, dtype: Dtype = None) -> Array:
    return _filled(size, 0, dtype)


@table.lowers(aten.empty_strided.default, aten.empty_permuted.default)
def empty_strided(size: Shape, stride: Shape, *, dtype: Dtype = None) -> Array:
    return _filled(size, 0, dtype)


@table.lowers(aten.ones.default)
def ones(size: Shape, *, dtype: Dtype = None) -> Array:
    return _filled(size, 1, dtype)


@table.lowers(aten.full.default)
def full(size: Shape, fill_value: Any, *, dtype: Dtype = None) -> Array:
    """The dtype of the number unless given: an int makes an int64 tensor."""
    return _filled(size, fill_value, dtype or number_dtype(fill_value))


@table.lowers(aten.zeros_like.default, aten.empty_like.default, aten.zero.default)
def zeros_like(x: Array, *, dtype: Dtype = None) -> Array:
    return full_like(x, 0, dtype=dtype)


@table.lowers(aten.ones_like.default)
def ones_like(x: Array, *, dtype: Dtype = None) -> Array:
    return full_like(x, 1, dtype=dtype)


@table.lowers(aten.full_like.default)
def full_like(x: Array, fill_value: Any, *, dtype: Dtype = None) -> Array:
    return _filled(x.shape, fill_value, dtype or dtypes.to_torch(x.dtype))


@table.lowers(aten.fill.Scalar, aten.fill.Tensor)
def fill(x: Array, value: Any) -> Array:
    """A number or a 0-d tensor everywhere, in the dtype of `x`."""
    return lax.broadcast(cast(value, x.dtype), x.shape)


@table.lowers(aten.new_zeros.default, aten.new_empty.default)
def new_zeros(x: Array, size: Shape, *, dtype: Dtype = None) -> Array:
    return new_full(x, size, 0, dtype=dtype)


@table.lowers(aten.new_ones.default)
def new_ones(x: Array, size: Shape, *, dtype: Dtype = None) -> Array:
    return new_full(x, size, 1, dtype=dtype)


@table.lowers(aten.new_full.default)
def new_full(x: Array, size: Shape, fill_value: Any, *, dtype: Dtype = None) -> Array:
    return _filled(size, fill_value, dtype or dtypes.to_torch(x.dtype))


@table.lowers(aten.scalar_tensor.default)
def scalar_tensor(s: Any, *, dtype: Dtype = None) -> Array:
    return _filled((), s, dtype)


@table.lowers(aten.eye.default)
def eye(n: int, *, dtype: Dtype = None) -> Array:
    return eye_m(n, n, dtype=dtype)


@table.lowers(aten.eye.m)
def eye_m(n: int, m: int, *, dtype: Dtype = None) -> Array:
    rows, columns = (lax.broadcasted_iota(np.dtype(np.int32), (n, m), dim) for dim in (0, 1))
    return cast(lax.eq(rows, columns), dtypes.to_jax(dtype or default_dtype()))


@table.lowers(aten.arange.default, static=["end"])
def arange(end: float, *, dtype: Dtype = None) -> Array:
    return arange_start_step(0, end, 1, dtype=dtype)


@table.lowers(aten.arange.start, static=["start", "end"])
def arange_start(start: float, end: float, *, dtype: Dtype = None) -> Array:
    return arange_start_step(start, end, 1, dtype=dtype)


@table.lowers(aten.arange.start_step, static=["start", "end", "step"])
def arange_start_step(start: float, end: float, step: float = 1, *, dtype: Dtype = None) -> Array:
    """`start + step * i` below `end`. An integer dtype truncates `start` and `step` beforehand.

    How many there are follows from the untruncated numbers, except in int64 where PyTorch counts so.
    """
    numbers = (start, end, step)
    if dtype is None:
        is_float = any(isinstance(number, float) for number in numbers)
        dtype = default_dtype() if is_float else torch.int64
    if dtype == torch.int64 and ARANGE_COUNTS_INTEGERS:
        start, end, step = (int(number) for number in numbers)
    if all(isinstance(number, int) for number in (start, end, step)):
        count = -((start - end) // step)
    else:
        count = math.ceil((end - start) / step)
    result = dtypes.to_jax(dtype)
    if result.kind in "iu":
        start, step = int(start), int(step)
    position = cast(
        lax.iota(np.dtype(np.int64 if count > 2**31 else np.int32), max(count, 0)),  # pyright: ignore[reportArgumentType]
        opmath(result),
    )
    values = position if step == 1 else lax.mul(position, cast(step, position.dtype))
    return cast(values if start == 0 else lax.add(values, cast(start, position.dtype)), result)


@table.lowers(aten.range.default, aten.range.step, static=["start", "end", "step"])
def range_step(start: float, end: float, step: float = 1, *, dtype: Dtype = None) -> Array:
    """`start + step * i` up to `end`, which is included; computed in float64 for every float dtype."""
    result = dtypes.to_jax(dtype or default_dtype())
    wide = np.dtype(np.int64 if result.kind in "iu" else np.float64)
    if result.kind in "iu":
        start, end, step = int(start), int(end), int(step)
    position = lax.iota(wide, int((end - start) / step) + 1)
    return cast(lax.add(lax.mul(position, cast(step, wide)), cast(start, wide)), result)


def spaced(start: Any, end: Any, steps: int, wide: np.dtype) -> Array:
    """`steps` numbers from `start` to `end`, counted from the nearer end so that both are exact."""
    first, last = cast(start, wide), cast(end, wide)
    if steps == 1:
        return lax.broadcast(first, (1,))
    position = lax.iota(np.dtype(np.int32), steps)
    # XLA divides by a constant as it multiplies by its inverse, which is not exact.
    intervals = lax.optimization_barrier(cast(max(steps - 1, 1), wide))
    step = lax.div(lax.sub(last, first), intervals)
    from_end = lax.sub(np.asarray(steps - 1, np.int32), position)
    return lax.select(
        lax.lt(position, np.asarray(steps // 2, np.int32)),
        lax.add(first, lax.mul(step, cast(position, wide))),
        lax.sub(last, lax.mul(step, cast(from_end, wide))),
    )


def _spaced_dtype(start: Any, end: Any, dtype: Dtype) -> np.dtype:
    if dtype is None:
        dtype = default_dtype()
        if any(_is_complex(x) for x in (start, end)):
            dtype = dtype.to_complex()
    return dtypes.to_jax(dtype)


def _is_complex(x: Any) -> bool:
    return number_dtype(x).is_complex if is_number(x) else x.dtype.kind == "c"


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if dtype.kind in "iu" else opmath(dtype)


@table.lowers(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(start: Any, end: Any, steps: int, *, dtype: Dtype = None) -> Array:
    """An integer dtype truncates `start` and `end` beforehand, and each number at the end."""
    result = _spaced_dtype(start, end, dtype)
    return cast(spaced(cast(start, result), cast(end, result), steps, _wide(result)), result)


@table.lowers(
    aten.logspace.default,
    aten.logspace.Tensor_Tensor,
    aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor,
)
def logspace(start: Any, end: Any, steps: int, base: Any = 10.0, *, dtype: Dtype = None) -> Array:
    result = _spaced_dtype(start, end, dtype)
    wide = _wide(result)
    if steps == 1 and result.kind != "c":  # the start as it came, not in the dtype of the result
        double = np.dtype(np.float64)
        return cast(lax.broadcast(lax.pow(cast(base, double), cast(start, double)), (1,)), result)
    powers = spaced(cast(start, result), cast(end, result), steps, wide)
    return cast(lax.pow(lax.broadcast(cast(base, wide), (steps,)), powers), result)
