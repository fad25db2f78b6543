"""`print(tensor)` on a copy: PyTorch's formatting runs many operators, and none of them need be compiled.

The copy is made before PyTorch begins to print. While it does, `torch.func` is off, for as long as the frame
that prints is there, which the traceback of an error would keep.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

import torch
from torch.nn import Parameter

from torch_pjrt.observe.causes import because
from torch_pjrt.session import session
from torch_pjrt.tensor.storage.buffer import is_pjrt
from torch_pjrt.tensor.storage.transfer import download

_n_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.maybe_current_level  # pyright: ignore[reportAttributeAccessIssue]


class _Here(threading.local):
    """What this thread prints, with the copy: within each other."""

    def __init__(self) -> None:
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []


_here = session.own("what is printed", _Here())


def install() -> None:
    """Format `pjrt` tensors through a CPU copy; the suffix still names the device."""
    module: Any = torch._tensor_str  # pyright: ignore[reportAttributeAccessIssue]
    format_contents, print_tensor = module._tensor_str, module._str
    if getattr(format_contents, "copies_pjrt", False):
        return

    @wraps(format_contents)
    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        if not is_pjrt(self):
            return format_contents(self, indent)
        for tensor, copy in _here.copies:
            if tensor is self:
                return format_contents(copy, indent)
        return format_contents(_copied(self), indent)

    @wraps(print_tensor)
    def _str(self: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if tensor_contents is not None or not _is_plain(self):
            return print_tensor(self, tensor_contents=tensor_contents)
        _here.copies.append((self, _copied(self)))
        try:
            return print_tensor(self)
        finally:
            _here.copies.pop()

    _tensor_str.copies_pjrt = True  # type: ignore[attr-defined]
    module._tensor_str, module._str = _tensor_str, _str


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is of this device, and no mode or transform is there to see how it is copied."""
    return (
        tensor.__class__ in (torch.Tensor, Parameter)
        and is_pjrt(tensor)
        and tensor.layout is torch.strided
        and not _n_modes()
        and _transform() is None
    )


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    with because("printing"):
        return download(tensor)
