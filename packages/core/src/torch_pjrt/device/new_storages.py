"""`torch.UntypedStorage(n, device="pjrt")`: a storage that Python code makes by itself.

PyTorch's C++ would ask the device for an allocator, which a Python backend has not, and the process would
end. Typed storages and `storage.to(device)` are made of this one too.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.device_index import check_index


def install() -> None:
    """Replace how storages are made, before the device is used first; does nothing the second time."""
    storages: Any = torch.UntypedStorage
    original = storages.__new__
    if getattr(original, "knows_pjrt", False):
        return

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "pjrt":
            return original(cls, *args, **kwargs)
        check_index(device)
        return _on_device(*args, **{k: v for k, v in kwargs.items() if k != "device"})

    new.knows_pjrt = True  # type: ignore[attr-defined]
    storages.__new__ = new


def _on_device(*args: Any, **kwargs: Any) -> torch.UntypedStorage:
    """Zeros, or the bytes that are given; whatever else PyTorch takes or refuses, it does on the CPU."""
    from torch_pjrt.tensor.registration.registry import register_all

    register_all()
    from torch_pjrt.tensor.storage.buffer import sized_storage
    from torch_pjrt.tensor.storage.host_buffer import HostBuffer, storage_of

    size = kwargs.get("size", args[0] if args else 0)
    if not isinstance(size, int) or len(args) > 1 or set(kwargs) - {"size"}:
        return storage_of(torch.UntypedStorage(*args, **kwargs))
    if size < 0:
        raise RuntimeError(f"Trying to create a storage of {size} bytes")
    return sized_storage(HostBuffer(size), size)
