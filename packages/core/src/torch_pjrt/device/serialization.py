"""`torch.save` and `torch.load` with tensors on the device.

Saving goes through a CPU copy of the storage. Loading to `pjrt` wraps the bytes that PyTorch read in a
storage of ours (`tensor/storage/host_buffer.py`); PyTorch's own way would ask for an allocator, which a
Python backend has not.
"""

from __future__ import annotations

import torch

from torch_pjrt.device_index import check_index
from torch_pjrt.session import session
from torch_pjrt.tensor.registration.registry import register_all
from torch_pjrt.tensor.storage.host_buffer import storage_of

# PyTorch tries its own package for PrivateUse1 with a higher number; the lowest is asked first.
_PRIORITY = 15


def install() -> None:
    """Register the tag and the deserializer; does nothing the second time."""
    if session.once("storages that are saved and loaded"):
        torch.serialization.register_package(_PRIORITY, _tag, _deserialize)  # pyright: ignore[reportArgumentType]


def _tag(storage: object) -> str | None:
    device = getattr(storage, "device", None)
    return "pjrt:0" if device is not None and device.type == "pjrt" else None


def _deserialize(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    if not location.startswith("pjrt"):
        return None
    check_index(location)
    register_all()  # no tensor may have been on the device, and one is put on this storage by a kernel
    return storage_of(storage)
