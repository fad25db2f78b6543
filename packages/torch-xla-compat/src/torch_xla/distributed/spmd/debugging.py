"""Pictures of how tensors lie."""

from __future__ import annotations

from typing import Any

import torch

import torch_pjrt_spmd
from torch_xla.absent import absent

__getattr__ = absent(
    __name__,
    {
        "visualize_sharding": "`visualize_tensor_sharding(tensor)` takes the tensor itself",
        "construct_v1_sharding_str": "`torch_pjrt_spmd.sharding_of(tensor)` says how it lies",
    },
)


def visualize_tensor_sharding(t: torch.Tensor, **options: Any) -> None:
    """Print which chip has which part of `t`: `torch_pjrt_spmd.visualize_sharding`."""
    torch_pjrt_spmd.visualize_sharding(t)
