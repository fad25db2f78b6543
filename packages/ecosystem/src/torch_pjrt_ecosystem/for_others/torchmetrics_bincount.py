"""torchmetrics counts classes on `pjrt` as on XLA devices: how many counts there are is known beforehand."""

from __future__ import annotations

from types import ModuleType

import torch

from torch_pjrt_ecosystem.replacing import replace_of_pytorch


def install(data: ModuleType) -> None:
    """`data` is `torchmetrics.utilities.data`."""
    replace_of_pytorch(data, bincount=_bincount)


def _bincount(x: torch.Tensor, minlength: int = 0) -> torch.Tensor:
    """PyTorch's; on `pjrt` (minlength,): numbers are below, as torchmetrics has them."""
    if x.device.type != "pjrt" or not minlength:
        return torch.bincount(x, minlength=minlength)
    classes = torch.arange(minlength, device=x.device)
    return (x.reshape(-1, 1) == classes).sum(dim=0)
