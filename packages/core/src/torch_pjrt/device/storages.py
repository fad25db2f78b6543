"""What Python code does to storages themselves: `clone`, `cpu`, `to`, `resize_`.

PyTorch's C++ would make or copy the memory behind the address, which for our storages is a number that
means nothing. These methods of `torch.UntypedStorage` are replaced by ones that go through the buffer
where the storage is of this device, and through the original otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from torch_pjrt.tensor.kernels.aliasing import nbytes_of, resize
from torch_pjrt.tensor.storage.buffer import (
    Buffer,
    buffer_behind,
    ensure_sized,
    give_address,
    is_pjrt,
    nbytes_in_cpp,
    sized_storage,
)
from torch_pjrt.tensor.storage.host_buffer import hold
from torch_pjrt.tensor.storage.transfer import host_storage
from torch_pjrt.tensor.storage.view import content

_bytes = torch.uint8


def install() -> None:
    """Replace the methods; does nothing the second time."""
    for name, replacement in (
        ("clone", clone),
        ("__deepcopy__", deep_copy),
        ("cpu", to_cpu),
        ("resize_", resize_),
        ("copy_", copy_),
        ("new", lambda storage: torch.UntypedStorage(device=storage.device)),
        ("byteswap", swap_bytes),
        ("tolist", lambda storage: to_cpu(storage).tolist()),
        ("_write_file", lambda storage, *args: to_cpu(storage)._write_file(*args)),
        ("_set_from_file", set_from_file),
        ("data_ptr", address_of),
        ("nbytes", size_of),
        ("size", size_of),
        ("__len__", size_of),
        ("__getitem__", lambda storage, index: to_cpu(storage)[index]),
    ):
        _replace(name, replacement)
    _replace_data_ptr()


def address_of(storage: Any) -> int:
    """The address that tells this storage from others; nothing is at it. 0 where it holds nothing."""
    buffer = buffer_behind(storage)
    return give_address(buffer, nbytes_of(buffer)) if buffer.spec.numel else 0


def size_of(storage: Any) -> int:
    """Its bytes, also where an operator's result has a storage of no size in C++ yet.

    A storage that was never ours may be a fake tensor's, whose size is a symbol.
    """
    if getattr(storage, "buffer", None) is None:
        in_cpp = nbytes_in_cpp(storage)
        if not isinstance(in_cpp, int):
            return in_cpp
    return nbytes_of(buffer_behind(storage))


def clone(storage: Any) -> torch.UntypedStorage:
    """A storage of the same size and content with an address of its own."""
    buffer = buffer_behind(storage)
    value = None if buffer.value is None else content(buffer)
    copy = Buffer(value, buffer.spec)
    copy.blank = False
    return sized_storage(copy, nbytes_of(copy))


def deep_copy(storage: Any, memo: dict[Any, Any]) -> torch.UntypedStorage:
    """`copy.deepcopy`: one copy for each buffer, since several storages may stand before one."""
    copies = memo.setdefault("torch", {})
    buffer = buffer_behind(storage)
    if buffer not in copies:
        copies[buffer] = clone(storage)
    return copies[buffer]


def to_cpu(storage: Any) -> torch.UntypedStorage:
    """A CPU storage with the content, in the order in which it lies in the storage."""
    return host_storage(buffer_behind(storage)).untyped_storage()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A CPU storage's bytes as a tensor on the same memory."""
    return torch.empty(0, dtype=_bytes, device="cpu").set_(storage)  # pyright: ignore[reportArgumentType]


def resize_(storage: Any, nbytes: int) -> torch.UntypedStorage:
    """Growing keeps the content; shrinking to 0 lets it go."""
    resize(storage, nbytes)
    return storage


def copy_(storage: Any, source: Any, non_blocking: bool | None = None) -> torch.UntypedStorage:
    """Replace the content by that of a storage of any device."""
    is_own = source.device.type == "pjrt"
    hold(storage, to_cpu(source) if is_own else source, is_own=is_own)
    return storage


def swap_bytes(storage: Any, dtype: torch.dtype) -> None:
    """Turn the bytes of each number around."""
    host = to_cpu(storage)
    host.byteswap(dtype)
    hold(storage, host, is_own=True)


def set_from_file(storage: Any, *args: Any) -> torch.UntypedStorage:
    """Fill the storage from a file in PyTorch's older format, as pickle uses it."""
    host = torch.UntypedStorage(storage.nbytes())
    host._set_from_file(*args)
    hold(storage, host, is_own=True)
    return storage


def _replace(name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(torch.UntypedStorage, name)
    if getattr(original, "knows_pjrt", False):
        return

    @wraps(original)
    def method(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "pjrt":
            return replacement(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    method.knows_pjrt = True  # type: ignore[attr-defined]
    setattr(torch.UntypedStorage, name, method)


def _replace_data_ptr() -> None:
    """An operator's result gets its address when somebody asks for it."""
    original = torch.Tensor.data_ptr
    if getattr(original, "knows_pjrt", False):
        return

    @wraps(original)
    def data_ptr(self: torch.Tensor) -> int:
        if is_pjrt(self):
            ensure_sized(self)
        return original(self)

    data_ptr.knows_pjrt = True  # type: ignore[attr-defined]
    torch.Tensor.data_ptr = data_ptr  # type: ignore[method-assign]
