"""A model that its user has put on `pjrt`, and that a library is about to take elsewhere."""

from __future__ import annotations

import warnings

import torch
from torch import nn


class LeavesDevice(UserWarning):
    """A model leaves `pjrt`, and what follows will not run there."""


def warn_if_leaving(
    model: object, device: torch.device | str | None, library: str, why: str
) -> None:
    """`LeavesDevice` where parameters are on `pjrt` and go to another device."""
    if not isinstance(model, nn.Module) or device is None:
        return
    target = torch.device(device)
    if target.type == "pjrt" or not any(p.device.type == "pjrt" for p in model.parameters()):
        return
    warnings.warn(
        f"{library} moves a model from `pjrt` to `{target}`, and goes on there: {why}",
        LeavesDevice,
        stacklevel=4,
    )
