"""The index in `pjrt:0`: there is one device in a process, and any other is refused."""

from __future__ import annotations

import os
from typing import Any

import torch

from torch_pjrt.errors import DeviceError


def is_other(index: int | None) -> bool:
    """Whether it is the index of another device than the one there is.

    Launchers number the processes of a host, and scripts take the device of that number, `pjrt:3`. Each
    process has a device of its own here, and that is the one which is meant.
    """
    return index not in (None, 0, -1) and str(index) != os.environ.get("LOCAL_RANK")


def check_index(device: Any) -> None:
    """Raise `DeviceError` unless `device` (an index, a name, a `torch.device`, None) is the one there is."""
    index = device if isinstance(device, int) else device and torch.device(device).index
    if is_other(index):
        raise no_such_index(index)


def no_such_index(index: int) -> DeviceError:
    """The error for a tensor, or whatever else, that is to be on a device which is not there."""
    return DeviceError(
        f"There is one device, `pjrt:0`; saw index {index}.",
        hint="several chips in one process are one sharded device; each process has its own `pjrt:0`",
    )
