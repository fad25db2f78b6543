"""What there is to check: operators, dtypes, kinds, and which of their combinations PyTorch supports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
FORWARD, GRADIENT, SECOND, OUT, INPLACE, ERROR = KINDS = (
    "forward",
    "gradient",
    "second",
    "out",
    "inplace",
    "error",
)
ANY_DTYPE = "any"  # sample errors come without a dtype


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One operator, one dtype (or `any`), one kind of check."""

    operator: str
    dtype: str
    kind: str

    def __str__(self) -> str:
        return f"{self.operator} {self.dtype} {self.kind}"


@cache
def operators() -> dict[str, Any]:
    """PyTorch's `OpInfo`s by full name (`linalg.norm.subgradients_at_zero`)."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {_full_name(info): info for info in op_db}


def cases_of(operator: str, kinds: Iterable[str] = KINDS) -> Iterator[Case]:
    """The cases of an operator that PyTorch supports on CPU, ordered by dtype."""
    info = operators()[operator]
    kinds = tuple(kinds)
    for name, dtype in DTYPES.items():
        for kind in kinds:
            if _supports(info, dtype, kind):
                yield Case(operator, name, kind)
    if ERROR in kinds and info.error_inputs_func is not None:
        yield Case(operator, ANY_DTYPE, ERROR)


def _supports(info: Any, dtype: torch.dtype, kind: str) -> bool:
    if kind in (GRADIENT, SECOND):
        return (
            info.supports_autograd
            and (kind == GRADIENT or info.supports_gradgrad)
            and dtype in info.supported_backward_dtypes("cpu")
        )
    return dtype in info.supported_dtypes("cpu") and {
        FORWARD: True,
        OUT: info.supports_out,
        INPLACE: info.inplace_variant is not None,
    }.get(kind, False)


def _full_name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
