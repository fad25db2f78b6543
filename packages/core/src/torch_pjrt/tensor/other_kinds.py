"""Tensors that are no dense arrays: sparse, nested and quantized ones are refused, in words."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.errors import UnsupportedError

DENSE_GRADIENT = "leave `sparse=True` out; the gradient is dense then"

#   dispatch key               what such a tensor is   what to do instead
KINDS: list[tuple[str, str, str]] = [
    ("SparsePrivateUse1", "sparse", DENSE_GRADIENT),
    ("SparseCsrPrivateUse1", "sparse", "use a dense tensor, or compute on the CPU"),
    ("NestedTensorPrivateUse1", "nested", "use layout=torch.jagged, or pad to one shape"),
    ("QuantizedPrivateUse1", "quantized", "compute in torch.int8 or torch.bfloat16"),
]


def refuse_other_kinds(library: torch.library.Library) -> None:
    """Register, for each kind, a fallback that raises."""
    for key, kind, hint in KINDS:
        library.fallback(_refusal(kind, hint), key)


def _refusal(kind: str, hint: str) -> Any:
    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"`{op}`: a pjrt tensor cannot be {kind}.", hint=hint)

    return refuse


def refuse_layout(layout: torch.layout) -> None:
    """Raise where a result would be sparse, such as a gradient with `sparse=True`."""
    if layout != torch.strided:
        raise UnsupportedError(
            f"The result would have the layout {layout}: a pjrt tensor cannot be sparse.",
            hint=DENSE_GRADIENT,
        )
