"""Mixed precision: PyTorch's autocast and gradient scaler, for the device."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla.amp import syncfree

__all__ = ["GradScaler", "autocast", "syncfree"]


class autocast(torch.autocast):
    """`torch.autocast("pjrt", dtype)`; bfloat16 where no dtype is given."""

    def __init__(
        self,
        device: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__("pjrt", dtype or torch.bfloat16, enabled, cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("pjrt")`, whose decision to leave out a step is made on the device."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.pop("use_zero_grad", None)
        super().__init__("pjrt", *args, **options)
