"""aten -> JAX: the core's lowering tables, one file a kind of operator, merged into `CORE`."""

from __future__ import annotations

import importlib

from torch_pjrt.lowering.table import Lowering, LoweringTable

# Each module owns a `table`; importing one changes nothing global.
KINDS: tuple[str, ...] = (
    "cast",
    "conv",
    "creation",
    "dropout",
    "embedding",
    "loss",
    "matmul",
    "norm",
    "pointwise.activation",
    "pointwise.binary",
    "pointwise.bitwise",
    "pointwise.compare",
    "pointwise.complex",
    "pointwise.ternary",
    "pointwise.unary",
    "reduction",
    "scan",
    "softmax",
)

CORE: LoweringTable = LoweringTable.merged(
    "core", [importlib.import_module(f"{__name__}.{kind}").table for kind in KINDS]
)

__all__ = ["CORE", "KINDS", "Lowering", "LoweringTable"]
