"""Tensors that the device cannot hold: nested and quantized ones are refused, in words.

Sparse ones are containers of dense tensors (`sparse.py`). An embedding's gradient may not be one.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.errors import UnsupportedError

#   dispatch key               what such a tensor is   what to do instead
KINDS: list[tuple[str, str, str]] = [
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


def refuse_sparse_gradient(*args: Any, **kwargs: Any) -> Any:
    """Raise in place of the gradient of an embedding with `sparse=True`."""
    raise UnsupportedError(
        "The gradient of an embedding would be sparse: on a device it must be dense.",
        hint="leave `sparse=True` out; the gradient is dense then",
    )


def refuse_layout(layout: torch.layout) -> None:
    """Raise for what an operator on dense tensors would give that is not dense."""
    if layout == torch.strided:
        return
    if layout == torch.sparse_coo:  # of those that can be recorded, only embedding bags do this
        refuse_sparse_gradient()
    raise UnsupportedError(f"The result would have the layout {layout}: a pjrt tensor cannot.")
