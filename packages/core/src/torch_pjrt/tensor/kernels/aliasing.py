"""Kernels that give a tensor another look, or another storage: no computation, nothing on the tape.

PyTorch's own C++ does the arithmetic of sizes and strides on our tensors, as on any strided ones: each
kernel makes sure that the storage has its true size and hands the call to the CPU kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt import dtypes
from torch_pjrt.errors import UnsupportedError
from torch_pjrt.graph.tensor_spec import (
    contiguous_spec,
    contiguous_strides,
    spec_of,
    storage_extent,
)
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.storage.buffer import (
    Buffer,
    buffer_behind,
    buffer_of,
    create_empty_tensor,
    ensure_sized,
    nbytes_in_cpp,
    set_storage,
    sized_storage,
    with_size,
    wrap_sized,
)
from torch_pjrt.tensor.storage.host_buffer import settle
from torch_pjrt.tensor.storage.uninitialized import fill_from, fills
from torch_pjrt.tensor.storage.view import content, read

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
    return aten.as_strided_.default.redispatch(_CPU, self, size, stride, storage_offset)


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
    if dtype != self.dtype and (dtypes.is_halved(dtype) or dtypes.is_halved(self.dtype)):
        raise UnsupportedError(
            f"view({dtype}) of {self.dtype}: the device holds 64-bit types in 32 bits.",
            hint="view it on the CPU",
        )
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
    """Put the tensor on another storage, which grows if it must.

    A storage that PyTorch made by itself holds zero bytes so far.
    """
    shape = tuple(size)
    strides = tuple(stride) or contiguous_strides(shape)
    buffer = buffer_behind(source)
    held = nbytes_of(buffer)
    spec = None  # of sizes that PyTorch refuses below
    if storage_offset >= 0 and len(strides) == len(shape) and min(strides, default=0) >= 0:
        spec = spec_of(shape, self.dtype, strides)
        buffer = settle(source, spec, storage_offset)
        held = max(held, storage_extent(shape, strides, storage_offset) * self.dtype.itemsize)
    source = resize(source, held)
    set_storage(self, source, storage_offset, shape, strides)
    buffer.viewed = buffer.viewed or spec is not buffer.spec or bool(storage_offset)
    buffer.blank = False
    return self


def set_storage_only(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    return set_source(self, source, 0, (source.nbytes() // self.dtype.itemsize,), (1,))


def set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    ensure_sized(source)
    storage = source.untyped_storage()
    return set_source(self, storage, source.storage_offset(), source.shape, source.stride())  # pyright: ignore[reportArgumentType]


def set_empty(self: torch.Tensor) -> torch.Tensor:
    blank = wrap_sized(None, contiguous_spec((0,), self.dtype))
    return set_tensor(self, blank)


def resize_(
    self: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """More elements than the storage holds make it grow; what is new is zero."""
    if memory_format is None and tuple(size) == self.shape:
        return self  # strides and all
    strides = contiguous_strides(tuple(size))
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        like = torch.empty(size, device="meta", memory_format=memory_format)
        strides = like.stride()
    buffer = ensure_sized(self)
    offset = self.storage_offset()
    needed = storage_extent(tuple(size), strides, offset) * self.dtype.itemsize  # pyright: ignore[reportArgumentType]
    held = nbytes_of(buffer)
    storage = resize(self.untyped_storage(), max(needed, held))
    set_storage(self, storage, offset, size, strides)  # pyright: ignore[reportArgumentType]
    if needed > held and fills():
        fill_from(self, held)
    return self


def is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether both are the same view of the same memory."""
    ensure_sized(self)
    ensure_sized(tensor)
    return aten.is_set_to.default.redispatch(_CPU, self, tensor)


def has_same_storage_numel(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both storages have room for as many elements."""
    for x in (self, other):
        _size_if_ours(x)
    return aten._has_same_storage_numel.default.redispatch(_CPU, self, other)


def new_zeros_with_same_feature_meta(
    self: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """Zeros that lie in a storage as `other` does in its own: a place for a tangent."""
    _size_if_ours(other)
    op = aten._new_zeros_with_same_feature_meta.default
    return op.redispatch(_CPU, self, other, self_num_batch_dims=self_num_batch_dims)


def _size_if_ours(x: torch.Tensor) -> None:
    if x.device.type == "pjrt":
        ensure_sized(x)


def nbytes_of(buffer: Buffer) -> int:
    """How many bytes the buffer holds."""
    return buffer.spec.numel * buffer.spec.dtype.itemsize


def resize(storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
    """The storage with room for `nbytes` bytes: the old content first, then zeros.

    It is another storage on the same buffer where this PyTorch cannot resize one in place.
    """
    buffer = buffer_behind(storage)
    if nbytes != nbytes_of(buffer):
        _refit(buffer, nbytes)
    return storage if nbytes_in_cpp(storage) == nbytes else with_size(storage, nbytes)


def _refit(buffer: Buffer, nbytes: int) -> None:
    """Let the buffer hold `nbytes` bytes, as one dimension; at another address, as on CPU."""
    dtype = buffer.spec.dtype if nbytes % buffer.spec.dtype.itemsize == 0 else torch.uint8
    spec = contiguous_spec((nbytes // dtype.itemsize,), dtype)
    kept = contiguous_spec((min(nbytes, nbytes_of(buffer)) // dtype.itemsize,), dtype)
    if kept.numel and buffer.value is not None:
        flat = wrap_sized(read(buffer, kept, 0), kept)
        if kept is not spec:
            flat = aten.constant_pad_nd.default(flat, [0, spec.numel - kept.numel])
        buffer.value = content(buffer_of(flat))
    else:
        buffer.value = None
    buffer.spec = spec
    buffer.viewed = True
    buffer.blank = False
    buffer.address = 0


def _meta_like(self: torch.Tensor) -> torch.Tensor:
    extent = storage_extent(self.shape, self.stride(), self.storage_offset())  # pyright: ignore[reportArgumentType]
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
    set_storage(alias, storage, looks.storage_offset(), looks.shape, looks.stride())  # pyright: ignore[reportArgumentType]
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
    aten.is_set_to.default: is_set_to,
    aten._has_same_storage_numel.default: has_same_storage_numel,
    aten._new_zeros_with_same_feature_meta.default: new_zeros_with_same_feature_meta,
}
