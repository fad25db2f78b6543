"""The index in `pjrt:0`: there is one device, and any other is refused."""

from __future__ import annotations

import os
from typing import Any

import torch

from torch_pjrt.errors import DeviceError


def check_index(device: Any) -> None:
    """Raise `DeviceError` unless `device` (an index, a name, a `torch.device`, None) is the one there is."""
    index = device if isinstance(device, int) else device and torch.device(device).index
    if index not in (None, 0, -1):
        raise no_such_index(index)


def check_chosen(device: Any) -> None:
    """As `check_index`, where a process of a run chooses its device by its number on the host.

    Launchers number the processes of a host, and PyTorch has each choose the device of that number. Each
    has a device of its own here, and that is its `pjrt:0`.
    """
    index = device if isinstance(device, int) else torch.device(device).index
    if str(index) != os.environ.get("LOCAL_RANK"):
        check_index(device)


def no_such_index(index: int) -> DeviceError:
    """The error for a tensor, or whatever else, that is to be on a device which is not there."""
    return DeviceError(
        f"There is one device, `pjrt:0`; saw index {index}.",
        hint="several chips in one process are one sharded device; each process has its own `pjrt:0`",
    )
