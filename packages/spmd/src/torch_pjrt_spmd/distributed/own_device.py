"""`device_id` of a process group: the device of the process, by the number that its launcher gave it.

PyTorch looks whether the number is less than that of the devices of a process, which is 1 here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_DEVICE = "pjrt"


def install() -> None:
    """Have groups take `device_id=torch.device("pjrt", LOCAL_RANK)`, or the number, for `pjrt:0`."""
    for name in ("init_process_group", "new_group"):
        taking = _taking_own_device(getattr(distributed_c10d, name))
        setattr(distributed_c10d, name, taking)
        setattr(dist, name, taking)


def _taking_own_device(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device_id") is not None:
            kwargs["device_id"] = _own(kwargs["device_id"])
        return make(*args, **kwargs)

    return made


def _own(device: Any) -> Any:
    """What PyTorch takes for the same device. Raises `DeviceError` where it is that of another process."""
    if isinstance(device, int):
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != _DEVICE:
            return device
        device = torch.device(_DEVICE, device)
    if device.type != _DEVICE or device.index is None:
        return device
    module: Any = torch.get_device_module(_DEVICE)
    module.set_device(device)
    return torch.device(_DEVICE, 0)
