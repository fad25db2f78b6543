"""The device that `Accelerator()` uses where nobody names one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt_ecosystem.at_hand import device, is_at_hand
from torch_pjrt_ecosystem.replacing import wrap_property


def install(state: Any) -> None:
    """`state` is `accelerate.state`."""
    wrap_property(state.PartialState, "default_device", _default_device)


def _default_device(original: Callable[[Any], torch.device], self: Any) -> torch.device:
    return device() if is_at_hand() else original(self)
