"""Lazy buffers: what stands behind a tensor's storage.

A `pjrt` tensor is a plain `torch.Tensor`: a storage, a size, strides and an offset. The storage's
Python object carries a `Buffer` as its attribute `buffer`; it lives exactly as long as the C++ storage,
so every tensor that shares the storage (a view, `detach()`, `.data`, a saved tensor) shares the buffer.

Sized and unsized storages. An operator's result gets a storage of 0 bytes, which is cheap. Its first
view needs one whose size PyTorch can check bounds against, with an address of its own: `ensure_sized`
then gives the storage its size, in place, for all tensors on it. Factories, transfers and loads make sized
ones at once. The address is a number that nothing reads: it tells shared storages from others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch

from torch_pjrt.every_object import Living
from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of
from torch_pjrt.overloads import aten
from torch_pjrt.session import session
from torch_pjrt.tensor.storage.mixed_devices import mismatch

create_empty_tensor = torch._C._acc.create_empty_tensor  # pyright: ignore[reportAttributeAccessIssue]
# The size that C++ sees. `UntypedStorage.nbytes` is replaced by one that counts the content as well.
nbytes_in_cpp = torch._C.StorageBase.nbytes  # pyright: ignore[reportAttributeAccessIssue]
_construct_storage: Any = torch._C._construct_storage_from_data_pointer
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_set = aten.set_.source_Storage_storage_offset
# Since PyTorch 2.12. Without it a tensor gets another storage instead, and only Python knows them as one.
_swap: Any = getattr(torch._C.StorageBase, "_swap_data_ptr_", None)
DEVICE = torch.device("pjrt", 0)

# Addresses start where no process has memory; storages are apart by at least 64 bytes.
_FIRST_ADDRESS = 1 << 60
_LARGEST = 1 << 44  # what claims more will never be there: its addresses may overlap others


class _Addresses:
    """Where the next storage seems to lie."""

    def __init__(self) -> None:
        self.next = _FIRST_ADDRESS
        self.lock = threading.Lock()


_addresses = session.own("addresses of storages", _Addresses())


class Buffer:
    """The content of a storage.

    value   the current content as one array; an in-place write puts another in its place. None while
            nothing was written to what `torch.empty` made; `viewed` is True then.
    spec    how that array lies in the storage: its shape, and strides that fill the storage densely.
    viewed  some tensor on this buffer may look different from `spec`; while False, all look like it, but
            that some may be conjugated or negated: PyTorch marks a tensor so behind its `alias`, which
            has no kernel here, since `as_subclass` takes no result of Python's.
    blank   nothing was written and no view taken since `torch.empty`.
    address the fake address of the storage, or 0 while it has none.

        >>> x = torch.ones(2, 3, device="pjrt")
        >>> buffer_of(x.T).spec.shape
        (2, 3)
    """

    __slots__ = ("__weakref__", "address", "blank", "spec", "value", "viewed")

    # Those of a `PaddedBuffer` are its own.
    padded: Any = None
    count: Any = None

    def __init__(self, value: Value | None, spec: TensorSpec) -> None:
        self.value = value
        self.spec = spec
        self.blank = self.viewed = value is None
        self.address = 0
        if buffers.is_noting:
            buffers.note(self)

    def held(self) -> tuple[Any, ...]:
        """What it holds, for `hold_again`; reading a padded buffer's `value` would end its padding."""
        return self.value, self.spec, self.viewed, self.blank

    def hold_again(self, held: tuple[Any, ...]) -> None:
        """Hold what it held."""
        self.value, self.spec, self.viewed, self.blank = held

    def __repr__(self) -> str:
        return f"Buffer({self.value}{', viewed' if self.viewed else ''})"


buffers = session.own("all buffers", Living(Buffer))


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """The buffer behind a `pjrt` tensor.

    >>> x = torch.ones(2, 3, device="pjrt")
    >>> buffer_of(x[0]) is buffer_of(x)
    True
    """
    return buffer_behind(tensor.untyped_storage())


def buffer_behind(storage: Any) -> Buffer:
    """The storage's buffer. A storage that PyTorch's C++ made by itself gets one of bytes, still blank.

    Raises PyTorch's error for a storage of another device.
    """
    buffer = getattr(storage, "buffer", None)
    if buffer is None:
        if storage.device.type != "pjrt":
            raise mismatch(storage.device)
        buffer = Buffer(None, contiguous_spec((nbytes_in_cpp(storage),), torch.uint8))
        buffer.blank = False
        storage.buffer = buffer
    return buffer


def is_pjrt(x: object) -> TypeGuard[torch.Tensor]:
    """Whether `x` is a tensor of this device.

    >>> is_pjrt(torch.ones(2, device="pjrt")), is_pjrt(torch.ones(2)), is_pjrt("text")
    (True, False, False)
    """
    return isinstance(x, torch.Tensor) and x.device.type == "pjrt"


def wrap(value: Value, spec: TensorSpec) -> torch.Tensor:
    """A new tensor that looks like `spec` (dense) with this content and an unsized storage if that serves.

    >>> x = upload(torch.arange(3))
    >>> wrap(x, x.spec)
    tensor([0, 1, 2], device='pjrt:0')
    """
    if not spec.plain:
        return wrap_sized(value, spec)
    tensor = create_empty_tensor(spec.shape, spec.dtype)
    tensor.untyped_storage().buffer = Buffer(value, spec)
    return tensor


def wrap_sized(value: Value | None, spec: TensorSpec) -> torch.Tensor:
    """A new tensor with this content (None: not yet any), on a sized storage with an address of its own.

    >>> x = upload(torch.arange(3))
    >>> wrap_sized(x, x.spec).data_ptr() != 0
    True
    """
    return wrap_buffer(Buffer(value, spec))


def wrap_buffer(buffer: Buffer) -> torch.Tensor:
    """A new tensor that looks like its buffer, on a sized storage."""
    spec = buffer.spec
    tensor = create_empty_tensor((0,), spec.dtype)
    storage = sized_storage(buffer, spec.numel * spec.dtype.itemsize)
    _set.redispatch(_CPU, tensor, storage, 0, spec.shape, spec.strides)
    return tensor


def sized_storage(buffer: Buffer, nbytes: int) -> torch.UntypedStorage:
    """A storage of `nbytes` bytes in front of `buffer`."""
    storage = _construct_storage(give_address(buffer, nbytes), DEVICE, nbytes)
    storage.buffer = buffer
    return storage


def give_address(buffer: Buffer, nbytes: int) -> int:
    """The buffer's address; its own from now on."""
    if not buffer.address:
        with _addresses.lock:
            buffer.address = buffer.address or _addresses.next
            _addresses.next += (min(nbytes, _LARGEST) + 127) & ~63
    return buffer.address


def ensure_sized(tensor: torch.Tensor) -> Buffer:
    """The tensor's buffer, marked as viewed, behind a storage of the true size."""
    storage = tensor.untyped_storage()
    buffer = buffer_behind(storage)
    if nbytes_in_cpp(storage) == 0 and buffer.spec.numel:
        resized = with_size(storage, buffer.spec.numel * buffer.spec.dtype.itemsize)
        if resized is not storage:
            set_storage(tensor, resized, 0, tensor.shape, tensor.stride())
    buffer.viewed = True
    buffer.blank = False
    return buffer


def with_size(storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
    """The storage, now of `nbytes` bytes in C++; or, with an older PyTorch, another one on its buffer."""
    buffer = buffer_behind(storage)
    if _swap is None:
        return sized_storage(buffer, nbytes)
    for size in (0, nbytes) if nbytes_in_cpp(storage) else (nbytes,):  # one of the two must be 0
        _swap(
            storage, _construct_storage(give_address(buffer, nbytes) if size else 0, DEVICE, size)
        )
    return storage


def set_storage(
    tensor: torch.Tensor,
    storage: torch.UntypedStorage,
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
) -> torch.Tensor:
    """Put `tensor` on `storage` (offset and strides in elements), without autograd noticing."""
    return _set.redispatch(_CPU, tensor, storage, offset, shape, strides)


def flat_spec(spec: TensorSpec) -> TensorSpec:
    """The spec of the same elements as one dimension in storage order."""
    return contiguous_spec((spec.numel,), spec.dtype)


def spec_and_offset(tensor: torch.Tensor) -> tuple[TensorSpec, int]:
    """What the tensor itself looks like, and its offset in elements.

    >>> spec, offset = spec_and_offset(torch.ones(2, 3, device="pjrt")[1])
    >>> spec.shape, offset
    ((3,), 3)
    """
    return spec_of(tensor.shape, tensor.dtype, tensor.stride()), tensor.storage_offset()  # pyright: ignore[reportReturnType]
