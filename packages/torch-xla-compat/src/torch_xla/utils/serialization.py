"""`save` and `load` of a nest of tensors, by PyTorch's own functions."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla.core.saving import save as _save


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """`xm.save`."""
    _save(data, path, master_only, global_master)


def load(path: str) -> Any:
    """What `save` wrote, with its tensors on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)
