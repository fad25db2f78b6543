"""aten -> JAX: the core's lowering tables, one file a kind of operator, merged into `CORE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_pjrt.lazy import attribute
from torch_pjrt.lowering.table import Lowering, LoweringTable

# Each module owns a `table`; importing one changes nothing global.
KINDS: tuple[str, ...] = (
    "adaptive_pool",
    "annotation",
    "antialias",
    "attention",
    "cast",
    "conv",
    "creation",
    "ctc",
    "distance",
    "dropout",
    "embedding",
    "embedding_bag",
    "fault",
    "fft",
    "foreach",
    "fractional_pool",
    "gradient_scaling",
    "grid_sample",
    "grouped_matmul",
    "hash",
    "histogram",
    "histogramdd",
    "indexing",
    "join",
    "linalg.decompose",
    "linalg.eigen",
    "linalg.matrix",
    "linalg.solve",
    "loss",
    "margin_loss",
    "mask",
    "matmul",
    "norm",
    "optimizer",
    "pad",
    "patches",
    "pointwise.activation",
    "pointwise.bessel",
    "pointwise.binary",
    "pointwise.bitwise",
    "pointwise.compare",
    "pointwise.complex",
    "pointwise.polynomial",
    "pointwise.special",
    "pointwise.ternary",
    "pointwise.unary",
    "pool",
    "prims",
    "quantize",
    "random",
    "rearrange",
    "reduction",
    "reparameterization",
    "resample",
    "rnn",
    "scaled_matmul",
    "scan",
    "scatter",
    "search",
    "segment",
    "slice",
    "softmax",
    "sort",
    "unique",
    "weight_norm",
    "windows",
)

if TYPE_CHECKING:
    CORE: LoweringTable

__all__ = ["CORE", "KINDS", "Lowering", "LoweringTable"]


def __getattr__(name: str) -> LoweringTable:
    """`CORE` is made when first asked for: the rules import JAX, the table type does not."""
    if name != "CORE":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tables = [attribute(f"{__name__}.{kind}", "table") for kind in KINDS]
    globals()["CORE"] = LoweringTable.merged("core", tables)
    return globals()["CORE"]
