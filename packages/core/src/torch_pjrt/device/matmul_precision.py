"""`torch.set_float32_matmul_precision`: a change holds for what is recorded after it."""

from __future__ import annotations

from functools import wraps

import torch

from torch_pjrt.run.sync import sync


def install() -> None:
    """Run what is pending before the precision changes; does nothing the second time."""
    original = torch.set_float32_matmul_precision
    if getattr(original, "knows_pjrt", False):
        return

    @wraps(original)
    def set_float32_matmul_precision(precision: str) -> None:
        if precision != torch.get_float32_matmul_precision():
            sync("torch.set_float32_matmul_precision()")
        original(precision)

    set_float32_matmul_precision.knows_pjrt = True  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision = set_float32_matmul_precision
