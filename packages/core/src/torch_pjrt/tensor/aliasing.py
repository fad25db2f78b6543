"""Kernels that give a tensor another look, or another storage: no computation, nothing on the tape.

PyTorch's own C++ does the arithmetic of sizes and strides on our tensors, as on any strided ones: each
kernel makes sure that the storage has its true size and hands the call to the CPU kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt import dtypes
from torch_pjrt.graph.face import contiguous_face, contiguous_strides, storage_extent
from torch_pjrt.tensor.buffer import (
    Buffer,
    buffer_behind,
    buffer_of,
    create_empty_tensor,
    ensure_sized,
    flat_face,
    nbytes_in_cpp,
    set_storage,
    sized_storage,
    wrap_sized,
)
from torch_pjrt.tensor.view import content, read

aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def as_strided(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """A view; PyTorch checks that it lies inside the storage."""
    ensure_sized(self)
    return aten.as_strided.default.redispatch(_CPU, self, size, stride, storage_offset)


def as_strided_(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """The same tensor with another look (`t_()`, `squeeze_()` and such end here)."""
    ensure_sized(self)
    offset = self.storage_offset() if storage_offset is None else storage_offset
    return set_storage(self, self.untyped_storage(), offset, size, stride)


def view(self: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    ensure_sized(self)
    return aten.view.default.redispatch(_CPU, self, size)


def _reshape_alias(self: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    ensure_sized(self)
    return aten._reshape_alias.default.redispatch(_CPU, self, size, stride)


def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    ensure_sized(self)
    return aten.unfold.default.redispatch(_CPU, self, dimension, size, step)


def view_dtype(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`Tensor.view(dtype)`: the same bytes; sizes and strides are those that PyTorch gives on CPU."""
    buffer = ensure_sized(self)
    looks = _meta_like(self).view(dtype)
    return _alias(self, buffer, dtype, looks)


def view_as_real(self: torch.Tensor) -> torch.Tensor:
    buffer = ensure_sized(self)
    looks = torch.view_as_real(_meta_like(self))
    return _alias(self, buffer, looks.dtype, looks)


def view_as_complex(self: torch.Tensor) -> torch.Tensor:
    buffer = ensure_sized(self)
    looks = torch.view_as_complex(_meta_like(self))
    return _alias(self, buffer, looks.dtype, looks)


def set_source(
    self: torch.Tensor,
    source: torch.UntypedStorage,
    storage_offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> torch.Tensor:
    """Put the tensor on another storage. A storage that PyTorch made by itself holds zero bytes so far."""
    buffer = buffer_behind(source)
    strides = stride or contiguous_strides(tuple(size))
    set_storage(self, source, storage_offset, size, strides)
    buffer.viewed = True
    buffer.blank = False
    return self


def set_storage_only(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    return set_source(self, source, 0, (source.nbytes() // self.dtype.itemsize,), (1,))


def set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    ensure_sized(source)
    storage = source.untyped_storage()
    return set_source(self, storage, source.storage_offset(), source.shape, source.stride())


def set_empty(self: torch.Tensor) -> torch.Tensor:
    blank = wrap_sized(None, contiguous_face((0,), self.dtype))
    return set_tensor(self, blank)


def resize_(
    self: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """More elements than the storage holds make it grow; what is new is zero."""
    strides = contiguous_strides(tuple(size))
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        like = torch.empty(size, device="meta", memory_format=memory_format)
        strides = like.stride()
    buffer = ensure_sized(self)
    offset = self.storage_offset()
    itemsize = self.dtype.itemsize
    needed = storage_extent(tuple(size), strides, offset)
    held = buffer.face.numel * buffer.face.dtype.itemsize // itemsize
    storage = self.untyped_storage()
    if needed > held:
        grow(buffer, needed * itemsize)
        storage = sized_storage(buffer, needed * itemsize)
    return set_storage(self, storage, offset, size, strides)


def grow(buffer: Buffer, nbytes: int) -> None:
    """Let the buffer hold `nbytes` bytes: the old content first, then zeros."""
    itemsize = buffer.face.dtype.itemsize
    numel = -(-nbytes // itemsize)
    old = buffer.face.numel
    face = contiguous_face((numel,), buffer.face.dtype)
    if old and buffer.value is not None:
        flat = wrap_sized(read(buffer, flat_face(buffer.face), 0), flat_face(buffer.face))
        grown = buffer_of(aten.constant_pad_nd.default(flat, [0, numel - old]))
        buffer.value = content(grown)
    else:
        buffer.value = None
    buffer.face = face
    buffer.viewed = True
    buffer.address = 0


def _meta_like(self: torch.Tensor) -> torch.Tensor:
    extent = storage_extent(self.shape, self.stride(), self.storage_offset())
    flat = torch.empty(extent, dtype=self.dtype, device="meta")
    like = flat.as_strided(self.shape, self.stride(), self.storage_offset())
    torch._C._set_conj(like, self.is_conj())
    torch._C._set_neg(like, self.is_neg())
    return like


def _alias(
    self: torch.Tensor, buffer: Buffer, dtype: torch.dtype, looks: torch.Tensor
) -> torch.Tensor:
    dtypes.to_jax(dtype)
    alias = create_empty_tensor((0,), dtype)
    storage = self.untyped_storage()
    if nbytes_in_cpp(storage) == 0:
        storage = sized_storage(buffer, 0)
    set_storage(alias, storage, looks.storage_offset(), looks.shape, looks.stride())
    torch._C._set_conj(alias, looks.is_conj())
    torch._C._set_neg(alias, looks.is_neg())
    return alias


KERNELS: dict[Any, Any] = {
    aten.as_strided.default: as_strided,
    aten.as_strided_.default: as_strided_,
    aten.view.default: view,
    aten._reshape_alias.default: _reshape_alias,
    aten.unfold.default: unfold,
    aten.view.dtype: view_dtype,
    aten.view_as_real.default: view_as_real,
    aten.view_as_complex.default: view_as_complex,
    aten.set_.source_Storage_storage_offset: set_source,
    aten.set_.source_Storage: set_storage_only,
    aten.set_.source_Tensor: set_tensor,
    aten.set_.default: set_empty,
    aten.resize_.default: resize_,
}
