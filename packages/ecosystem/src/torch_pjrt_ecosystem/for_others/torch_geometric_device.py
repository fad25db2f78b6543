"""PyTorch Geometric: `torch_geometric.device("auto")` is `pjrt` where that is at hand."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_pjrt_ecosystem.at_hand import device as the_device
from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.replacing import wrap


def install(module: ModuleType) -> None:
    """`module` is `torch_geometric.device`."""
    wrap(module, "device", _device)


def _device(original: Callable[[Any], torch.device], device: Any) -> torch.device:
    found = original(device)
    return the_device() if device == "auto" and found.type == "cpu" and is_at_hand() else found
