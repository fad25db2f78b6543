"""The device of a pipeline: that of its model, or the one at hand. Transformers would go to the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt_ecosystem.at_hand import device as the_device
from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.placement import warn_if_leaving
from torch_pjrt_ecosystem.replacing import wrap


def install(base: Any) -> None:
    """`base` is `transformers.pipelines.base`."""
    wrap(base.Pipeline, "__init__", _init)


def _init(
    original: Callable[..., None],
    self: Any,
    model: Any,
    *args: Any,
    device: int | str | torch.device | None = None,
    **kwargs: Any,
) -> None:
    """A model that `device_map` has placed stays; a number from 0 on is the accelerator, as with CUDA."""
    is_placed = getattr(model, "hf_device_map", None) is not None
    is_open = device is None or (isinstance(device, int) and device >= 0)
    if is_open and not is_placed and (_type_of(model) == "pjrt" or is_at_hand()):
        device = the_device()
    elif isinstance(device, str | torch.device):
        warn_if_leaving(model, device, "Transformers", f"`device` of the pipeline is `{device}`")
    original(self, model, *args, device=device, **kwargs)


def _type_of(model: Any) -> str | None:
    device = getattr(model, "device", None)
    return device.type if isinstance(device, torch.device) else None
