"""`torch.accelerator` for functions that ask C++ hooks which a Python backend cannot provide."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch


def install() -> None:
    """Wrap `torch.accelerator.synchronize`; does nothing the second time."""
    original = torch.accelerator.synchronize
    if getattr(original, "knows_pjrt", False):
        return

    @wraps(original)
    def synchronize(device: Any = None, /) -> None:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == "pjrt":
            torch.pjrt.synchronize()  # type: ignore[attr-defined]
        else:
            original(device)

    synchronize.knows_pjrt = True  # type: ignore[attr-defined]
    torch.accelerator.synchronize = synchronize
