"""What a program has that a device cannot do, by its StableHLO.

Only devices whose capabilities are limited are asked about: for others nothing here runs.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.plugin.capabilities import LEAST, Capabilities
from torch_pjrt.plugin.operations import each_operation

# The structure of a program, which is no operation of the device.
_STRUCTURE = frozenset(("builtin", "func", "sdy"))
_WIDE = frozenset(("f64", "i64", "ui64", "complex<f64>"))
_ELEMENTS: dict[torch.dtype, str] = {
    torch.bool: "i1",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
    torch.float8_e8m0fnu: "f8E8M0FNU",
}


def objection(module: Any, capabilities: Capabilities) -> str | None:
    """What of an MLIR module the device cannot do, in words; None if it can do all."""
    forbidden = {_ELEMENTS[d] for d in capabilities.lacks_dtypes if d in _ELEMENTS}
    if not capabilities.has_64_bits:
        forbidden |= _WIDE
    allowed = capabilities.operations
    unknown: set[str] = set()
    elements: set[str] = set()
    for operation in each_operation(module.operation):
        dialect, _, name = operation.name.partition(".")
        if dialect not in _STRUCTURE and operation.name != "stablehlo.return":
            short = name if dialect == "stablehlo" else operation.name
            if allowed is not None and short not in allowed and short not in LEAST:
                unknown.add(short)
            elements |= {_element(r.type) for r in operation.results} & forbidden
    words = [f"the operation `{name}`" for name in sorted(unknown)]
    words += [f"values of {name}" for name in sorted(elements)]
    return " and ".join(words) or None


def _element(kind: Any) -> str:
    """The element type of a value's type, as text."""
    element = getattr(kind, "element_type", None)
    return str(kind if element is None else element)
