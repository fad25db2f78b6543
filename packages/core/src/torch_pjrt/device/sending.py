"""Tensors sent to another process (`torch.multiprocessing`): their content goes by way of the CPU.

PyTorch would share the memory of a CPU tensor, or that of a GPU. Here the receiver gets a copy on its own
device, which it starts if it must: what one process writes then, the other does not see.
"""

from __future__ import annotations

from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_pjrt.session import session


def install() -> None:
    """Register it; does nothing the second time."""
    if session.once("storages that are sent to processes"):
        ForkingPickler.register(torch.UntypedStorage, _reduce)


def _reduce(storage: Any) -> Any:
    if storage.device.type != "pjrt":
        return reductions.reduce_storage(storage)
    host = storage.cpu()
    if get_spawning_popen() is not None:
        # What a process is started with: it gets the descriptor of memory that is shared, which has to stay
        # open until it runs, and nothing but the pickler holds this copy.
        from torch_pjrt.device.storages import bytes_of

        return received_bytes, (bytes_of(host).numpy(),)
    return received, (host,)


def received_bytes(host: Any) -> torch.UntypedStorage:
    """In the process that is started: the storage on the device there."""
    return received(torch.from_numpy(host).untyped_storage())


def received(host: torch.UntypedStorage) -> torch.UntypedStorage:
    """In the other process: the storage on the device there."""
    from torch_pjrt.tensor.registration.registry import register_all
    from torch_pjrt.tensor.storage.host_buffer import storage_of

    register_all()
    return storage_of(host)
