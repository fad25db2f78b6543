"""Lowerings of ops that answer True or False of each element of two operands."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.pointwise.rows import Compute, matched, row
from torch_pjrt.lowering.promote import Array
from torch_pjrt.lowering.table import LoweringTable, Rule
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.compare")

COMPARE = [
    (aten.eq, lax.eq),
    (aten.ge, lax.ge),
    (aten.gt, lax.gt),
    (aten.le, lax.le),
    (aten.lt, lax.lt),
    (aten.ne, lax.ne),
]

LOGICAL = [
    (aten.logical_and.default, lax.bitwise_and),
    (aten.logical_or.default, lax.bitwise_or),
    (aten.logical_xor.default, lax.bitwise_xor),
]


def _of_truth(compute: Compute) -> Rule:
    def rule(x: Any, other: Any) -> Array:
        return compute(*matched([cast(x, jnp.dtype(bool)), cast(other, jnp.dtype(bool))]))

    return rule


for packet, compute in COMPARE:
    table.add(packet.Tensor, row(compute))
    table.add(packet.Scalar, row(compute))
for op, compute in LOGICAL:
    table.add(op, _of_truth(compute))
