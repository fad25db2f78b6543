"""Compiled layers of experts multiply by groups on the device, as they do where nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import wrap


def install(moe: Any) -> None:
    """`moe` is `transformers.integrations.moe`, which has imported Dynamo."""
    from torch_pjrt_dynamo import fake_products

    wrap(moe, "_can_use_grouped_mm", _can_use)
    fake_products.register()  # whatever backend traces


def _can_use(
    original: Callable[..., bool], input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor
) -> bool:
    """Dynamo traces this."""
    return weight.device.type == "pjrt" or original(input, weight, offs)
