"""Buffers whose bytes the host still has: of what those are, the first tensor on the storage says.

`torch.load` makes a storage of bytes first, and puts a tensor on it then. Uploaded as bytes, the tensor would
be a view of them for good, in another program than that of an equal one, which reads and writes it at each
use.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec
from torch_pjrt.tensor.storage.buffer import Buffer, buffer_behind, sized_storage
from torch_pjrt.tensor.storage.transfer import upload

_value: Any = Buffer.__dict__["value"]


class HostBuffer(Buffer):
    """A buffer of bytes that no tensor is on; they are uploaded when somebody asks for its `value`.

    host   a CPU storage with the bytes, which nobody writes to; None for zeros, and once they were uploaded.
    """

    __slots__ = ("host",)

    def __init__(self, nbytes: int, host: torch.UntypedStorage | None = None) -> None:
        super().__init__(None, contiguous_spec((nbytes,), torch.uint8))
        self.host = host
        self.blank = False

    @property
    def value(self) -> Value | None:  # type: ignore[override]
        host = self.host
        if host is not None:
            self.value = _uploaded(host, self.spec)
        return _value.__get__(self)

    @value.setter
    def value(self, value: Value | None) -> None:
        _value.__set__(self, value)
        self.host = None

    def held(self) -> tuple[Any, ...]:
        return self.value, *super().held()[1:]


def storage_of(host: torch.UntypedStorage) -> torch.UntypedStorage:
    """A storage of this device with the bytes of a CPU storage, which nobody writes to any more."""
    return sized_storage(HostBuffer(host.nbytes(), host), host.nbytes())


def settle(storage: Any, spec: TensorSpec, offset: int) -> Buffer:
    """The storage's buffer, before a tensor that looks so is put on it.

    Where the host has its bytes, they are uploaded as that tensor, if it is all of them.
    """
    buffer = buffer_behind(storage)
    if not isinstance(buffer, HostBuffer):
        return buffer
    host = buffer.host
    is_all = not offset and spec.dense and spec.numel * spec.dtype.itemsize == buffer.spec.numel
    if is_all and host is not None:
        settled = Buffer(_uploaded(host, spec), spec)
    else:
        settled = Buffer(buffer.value, buffer.spec)
        settled.viewed = True
    settled.address = buffer.address
    storage.buffer = settled
    return settled


def hold(storage: Any, host: torch.UntypedStorage, *, is_own: bool) -> None:
    """Have the storage hold the bytes of a CPU storage; `is_own` if nobody writes to that any more.

    What tensors on it look like its buffer look like it still.
    """
    buffer = buffer_behind(storage)
    spec = buffer.spec
    if spec.numel * spec.dtype.itemsize != host.nbytes() or not spec.dense:
        buffer.spec = contiguous_spec((host.nbytes(),), torch.uint8)
        buffer.viewed = True
    if isinstance(buffer, HostBuffer):
        buffer.value = None
        buffer.host = host if is_own else host.clone()
    else:
        buffer.value = _uploaded(host, buffer.spec)
        buffer.blank = False


def _uploaded(host: torch.UntypedStorage, spec: TensorSpec) -> Value:
    """All bytes of a CPU storage as a tensor that looks so."""
    whole = torch.empty(0, dtype=spec.dtype, device="cpu")
    return upload(whole.set_(host, 0, spec.shape, spec.strides))  # type: ignore[arg-type]
