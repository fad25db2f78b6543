"""The operations of a StableHLO module, those within loops and branches too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.mlir import ir

Value = Any
Operation = Any

LOOPS_AND_BRANCHES = frozenset(("stablehlo.case", "stablehlo.if", "stablehlo.while"))
# Operations that have others within. The bodies of folds and sorts are left alone.
_OUTER = LOOPS_AND_BRANCHES | frozenset(("builtin.module", "func.func"))


def each_operation(operation: Operation) -> Iterator[Operation]:
    """What is within an operation, in order."""
    for region in operation.regions:
        for block in region.blocks:
            for each in block.operations:
                inner = each.operation
                yield inner
                if inner.name in _OUTER:
                    yield from each_operation(inner)


def is_inexact(value: Value) -> bool:
    """Whether its elements are floating or complex."""
    kind = value.type.element_type
    return isinstance(kind, (ir.FloatType, ir.ComplexType))
