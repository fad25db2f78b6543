"""Modules of TorchScript, whose parameters are C++'s: those that a file holds, and those that move.

The reader of a file moves each storage as a row of numbers, and then gives tensors on it their shapes without
a call of any kernel. And `module.to("pjrt")` has no `nn.Parameter`s to replace.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def install() -> None:
    """Wrap `torch.jit.load`; does nothing the second time."""
    original = torch.jit.load
    if getattr(original, "knows_pjrt", False):
        return

    @wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        module = original(*args, **kwargs)
        for x in (*module.parameters(), *module.buffers()):
            if x.device.type == "pjrt":
                _say_that_it_is_viewed(x)
        return module

    load.knows_pjrt = True  # type: ignore[attr-defined]
    torch.jit.load = load


def _say_that_it_is_viewed(x: torch.Tensor) -> None:
    """Its shape is not that of its storage's content."""
    from torch_pjrt.tensor.storage.buffer import buffer_of

    buffer_of(x).viewed = True


def move_parameters(module: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace the module's own parameters by `fn` of them, where that moves them to `pjrt` or from it."""
    for name, old in module._parameters.items():
        with torch.no_grad():
            new = fn(old)
        if "pjrt" in {old.device.type, new.device.type} and old.device != new.device:
            module._c.setattr(name, new.requires_grad_(old.requires_grad))
