"""Lowerings of ops that mix three operands element by element: choose, bound, interpolate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.pointwise.rows import (
    constant,
    is_literally,
    operands,
    rounded,
    select,
    wide_operands,
)
from torch_pjrt.lowering.promote import Array
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.ternary")


@table.lowers(aten.where.self)
def where(condition: Array, x: Any, other: Any) -> Array:
    (a, b), _ = operands([x, other])
    return select(cast(condition, jnp.dtype(bool)), a, b)


@table.lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    """`x`, but at least `min`, and then at most `max`. nan in any of them is nan in the result."""
    given = [bound for bound in (min, max) if bound is not None]
    (result, *bounds), _ = operands([x, *given])
    if min is not None:
        result = lax.max(result, bounds[0])
    return result if max is None else lax.min(result, bounds[-1])


@table.lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(x: Array, min: Any) -> Array:
    return clamp(x, min=min)


@table.lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(x: Array, max: Any) -> Array:
    return clamp(x, max=max)


@table.lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(x: Array, end: Array, weight: Any) -> Array:
    """`x` at weight 0, `end` at weight 1: each is exact, being counted from the nearer one."""
    (a, b, w), dtype = wide_operands([x, end, weight], exact_numbers=True)
    distance = lax.sub(b, a)

    def from_start() -> Array:
        return lax.add(a, lax.mul(w, distance))

    def from_end() -> Array:
        return lax.sub(b, lax.mul(distance, lax.sub(constant(1, w), w)))

    if not isinstance(weight, jax.Array):
        return rounded(from_start() if abs(weight) < 0.5 else from_end(), dtype)
    size = lax.abs(w)
    near_start = lax.lt(size, constant(0.5, size))
    return rounded(select(near_start, from_start(), from_end()), dtype)


def _times_value(x: Array, value: Any) -> Array:
    return x if is_literally(value, 1) else lax.mul(x, cast(value, x.dtype))


@table.lowers(aten.addcmul.default)
def addcmul(x: Array, tensor1: Array, tensor2: Array, *, value: Any = 1) -> Array:
    """`x + value * tensor1 * tensor2`."""
    (a, b, c), dtype = wide_operands([x, tensor1, tensor2])
    return rounded(lax.add(a, lax.mul(_times_value(b, value), c)), dtype)


@table.lowers(aten.addcdiv.default)
def addcdiv(x: Array, tensor1: Array, tensor2: Array, *, value: Any = 1) -> Array:
    """`x + value * tensor1 / tensor2`."""
    (a, b, c), dtype = wide_operands([x, tensor1, tensor2])
    return rounded(lax.add(a, lax.div(_times_value(b, value), c)), dtype)
