"""Lowerings of ops on the bits of integers, and on bools."""

from __future__ import annotations

from jax import lax

from torch_pjrt.lowering.pointwise.rows import Compute, constant, filled, row, select
from torch_pjrt.lowering.promote import Array
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.bitwise")


def _bits(x: Array) -> int:
    return 8 * x.dtype.itemsize


def _is_outside(x: Array, positions: Array) -> Array:
    """Whether it is a shift by fewer than 0 bits, or by as many as `x` has, or more."""
    return lax.bitwise_or(
        lax.lt(positions, constant(0, positions)), lax.ge(positions, constant(_bits(x), positions))
    )


def _left(x: Array, positions: Array) -> Array:
    """0 for a shift by a negative number or by all bits."""
    x, positions = filled([x, positions])
    return select(_is_outside(x, positions), constant(0, x), lax.shift_left(x, positions))


def _right(x: Array, positions: Array) -> Array:
    """Copies of the sign come in; nothing but them remains of a shift as in `_left`."""
    x, positions = filled([x, positions])
    if x.dtype.kind == "u":
        shifted = lax.shift_right_logical(x, positions)
        return select(_is_outside(x, positions), constant(0, x), shifted)
    most = constant(_bits(x) - 1, positions)
    return lax.shift_right_arithmetic(x, select(_is_outside(x, positions), most, positions))


BITWISE: list[tuple[object, Compute]] = [
    (aten.bitwise_and, lax.bitwise_and),
    (aten.bitwise_or, lax.bitwise_or),
    (aten.bitwise_xor, lax.bitwise_xor),
]

SHIFTS = [
    (aten.bitwise_left_shift, aten.__lshift__, _left),
    (aten.bitwise_right_shift, aten.__rshift__, _right),
]

table.add(aten.bitwise_not.default, row(lax.bitwise_not))
for packet, compute in BITWISE:
    for overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        table.add(getattr(packet, overload), row(compute))
for packet, operator, compute in SHIFTS:
    for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        table.add(getattr(packet, overload), row(compute))
    for overload in ("Tensor", "Scalar"):
        table.add(getattr(operator, overload), row(compute))
