"""torchmetrics counts classes on `pjrt` as on XLA devices: how many counts there are is known beforehand."""

from __future__ import annotations

from types import ModuleType

import torch


def install(data: ModuleType) -> None:
    """`data` is `torchmetrics.utilities.data`. What it calls `torch` is PyTorch, but for `bincount`."""
    if data.torch is torch:
        data.torch = _Torch("torch")  # type: ignore[attr-defined]


class _Torch(ModuleType):
    @staticmethod
    def bincount(x: torch.Tensor, minlength: int = 0) -> torch.Tensor:
        """PyTorch's; on `pjrt` (minlength,): numbers are below, as torchmetrics has them."""
        if x.device.type != "pjrt" or not minlength:
            return torch.bincount(x, minlength=minlength)
        classes = torch.arange(minlength, device=x.device)
        return (x.reshape(-1, 1) == classes).sum(dim=0)

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)
