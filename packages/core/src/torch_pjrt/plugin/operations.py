"""The operations of an MLIR module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def each_operation(root: Any) -> Iterator[Any]:
    """All operations within one, in order, each before what is within it.

    >>> import jax
    >>> module = jax.jit(jax.numpy.sin).lower(1.0).compiler_ir("stablehlo")
    >>> [op.name for op in each_operation(module.operation)]
    ['func.func', 'stablehlo.sine', 'func.return']
    """
    for region in root.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from each_operation(inner.operation)
