"""`print(tensor)` on a copy: PyTorch's formatting runs many operators, and none of them need be compiled."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from torch_pjrt.observe.causes import because
from torch_pjrt.tensor.storage.buffer import is_pjrt
from torch_pjrt.tensor.storage.transfer import download


def install() -> None:
    """Format `pjrt` tensors through a CPU copy; the suffix still names the device."""
    module: Any = torch._tensor_str  # pyright: ignore[reportAttributeAccessIssue]
    format_contents = module._tensor_str
    if getattr(format_contents, "copies_pjrt", False):
        return

    @wraps(format_contents)
    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        if not is_pjrt(self):
            return format_contents(self, indent)
        with because("printing"):
            return format_contents(download(self), indent)

    _tensor_str.copies_pjrt = True  # type: ignore[attr-defined]
    module._tensor_str = _tensor_str
