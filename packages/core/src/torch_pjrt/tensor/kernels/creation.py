"""Kernels that make tensors, copy them, and move them between host and device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from torch_pjrt import dtypes
from torch_pjrt.device_index import check_index
from torch_pjrt.graph.tape import state
from torch_pjrt.graph.tensor_spec import (
    contiguous_spec,
    contiguous_strides,
    spec_of,
    storage_extent,
)
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.kernel_source import NUMBERS
from torch_pjrt.tensor.storage.buffer import (
    Buffer,
    buffer_of,
    is_pjrt,
    set_storage,
    spec_and_offset,
    wrap_sized,
)
from torch_pjrt.tensor.storage.counts import is_data_dependent
from torch_pjrt.tensor.storage.mixed_devices import mismatch
from torch_pjrt.tensor.storage.overlap import (
    refuse_internal_overlap,
    refuse_partial_overlap,
    same_view,
)
from torch_pjrt.tensor.storage.transfer import (
    download,
    host_view,
    overwrite,
    overwrite_on_device,
    spec_on_device,
    untraced,
    upload,
)
from torch_pjrt.tensor.storage.uninitialized import filled, fills

_TOO_LARGE = 1 << 63
# What holds any number of a Python type.
_EXACT = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """A tensor with no content yet: nothing is recorded until somebody reads or partly writes it."""
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        strides = contiguous_strides(tuple(size))
    else:
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return empty_strided(size, strides, dtype=dtype, device=device)


def empty_like(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """As `empty`, of the size and, unless `memory_format` says otherwise, the strides of `self`."""
    if is_data_dependent(buffer_of(self)):
        kwargs = {"dtype": dtype, "device": device, "memory_format": memory_format}
        return record.call(aten.empty_like.default, (self,), kwargs)
    look = spec_of(self.shape, dtype or self.dtype, self.stride()).meta()
    like = torch.empty_like(look, memory_format=memory_format)
    return torch.empty_strided(
        like.shape, like.stride(), dtype=like.dtype, device=device or self.device
    )


def new_empty(
    self: torch.Tensor,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """As `empty`, here unless another device is given."""
    return torch.empty(size, dtype=dtype or self.dtype, device=device or self.device)


def new_empty_strided(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Here, unless another device is given."""
    return torch.empty_strided(
        size, stride, dtype=dtype or self.dtype, device=device or self.device
    )


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """As `empty`. Strides that leave gaps or overlap make the tensor a view of a flat buffer."""
    dtype = dtype or torch.get_default_dtype()
    dtypes.to_jax(dtype)
    if device is not None and device.index:
        check_index(device)
    if any(n < 0 for n in size) or len(size) != len(stride):
        torch.empty_strided(size, stride, device="meta")  # raises PyTorch's error
    spec = spec_of(tuple(size), dtype, tuple(stride))
    if spec.numel * dtype.itemsize >= _TOO_LARGE:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={list(size)}")
    if spec.dense:
        made = wrap_sized(None, spec)
    else:
        extent = storage_extent(spec.shape, spec.strides)
        flat = wrap_sized(None, contiguous_spec((extent,), dtype))
        made = set_storage(flat, flat.untyped_storage(), 0, size, stride)
    return filled(made) if fills() else made


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`self[...] = src` in every direction between host and device."""
    if src.__class__ in NUMBERS:  # PyTorch takes them for tensors without dims
        src = torch.tensor(src, dtype=_EXACT[src.__class__], device="cpu")
    if not is_pjrt(self):
        return self.copy_(download(src))
    if self is src or (is_pjrt(src) and same_view(self, src)):
        return self
    refuse_internal_overlap(spec_and_offset(self)[0])
    if not is_pjrt(src):
        if self.shape != src.shape:
            _check_broadcast(self, src)
            src = src.expand(self.shape)
        overwrite(self, src)
        return self
    refuse_partial_overlap((self,), (src,))
    if self.shape == src.shape and self.dtype == src.dtype:
        overwrite_on_device(self, src)
        return self
    return record.call(aten.copy_.default, (self, src), {})


def clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """The same content in another buffer: nothing to compute, unless a lazy bit is to be applied."""
    made = _copy_of_nothing(self) if memory_format in _AS_IT_IS else None
    if made is not None:
        return made
    return record.call(aten.clone.default, (self,), {"memory_format": memory_format})


def lift_fresh_copy(self: torch.Tensor) -> torch.Tensor:
    """As `clone`."""
    made = _copy_of_nothing(self)
    return record.call(aten.lift_fresh_copy.default, (self,), {}) if made is None else made


_AS_IT_IS = (None, torch.preserve_format, torch.contiguous_format)


def _copy_of_nothing(x: torch.Tensor) -> torch.Tensor | None:
    """A copy without a node of what has no elements and is on the device; None of what is not so simple.

    Dynamo copies those that a cache begins as, and keeps them: as nodes they would make the first step
    another program than all others.
    """
    if x.numel() or x.is_conj() or x.is_neg() or state.tape.nested:
        return None
    buffer = buffer_of(x)
    if buffer.__class__ is not Buffer or buffer.value is None or buffer.value.array is None:
        return None
    spec = buffer.spec
    is_all = spec.contiguous and spec_and_offset(x) == (spec, 0)
    return wrap_sized(buffer.value, spec) if is_all else None


def _copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return copy_(dst, self, non_blocking)


def _to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Another dtype on the device, or a copy on another device."""
    if isinstance(self, UninitializedTensorMixin):
        self = _without_class(self)
    if device is not None and device.type != "pjrt":
        host = download(self)
        return host.to(
            device=device, dtype=dtype, memory_format=memory_format or torch.preserve_format
        )
    if device is not None and device.index:
        check_index(device)
    if dtype is not None:
        dtypes.to_jax(dtype)
    if not is_pjrt(self):
        source = self.to(dtype) if dtype is not None else self
        return wrap_sized(upload(source), spec_on_device(source, memory_format))
    kwargs = {"dtype": dtype, "memory_format": memory_format}
    return record.call(aten._to_copy.default, (self,), kwargs)


def _without_class(x: torch.Tensor) -> torch.Tensor:
    """A parameter or buffer of a lazy module as a plain tensor, whose shape may be asked for."""
    with torch._C.DisableTorchFunctionSubclass():
        return x.detach()


def _local_scalar_dense(self: torch.Tensor) -> bool | int | float | complex:
    """The value of a tensor of one element; runs what is pending."""
    with untraced():
        return host_view(self).item()


def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    if self.device != other.device:
        raise mismatch(self.device if is_pjrt(other) else other.device)
    return torch.equal(host_view(self), host_view(other))


def _efficientzerotensor(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Plain zeros: XLA removes the arithmetic on them by itself.

    Of bool they are bytes. They are the tangents of inputs that have none, and PyTorch's formulas subtract
    from them, which is refused for bool; both give way to the dtype of the other tangent.
    """
    wide = torch.uint8 if dtype is torch.bool else dtype
    return empty(size, dtype=wide, device=device).zero_()


def _check_broadcast(self: torch.Tensor, src: torch.Tensor) -> None:
    """Raise PyTorch's error if `src` cannot be broadcast to `self`."""
    torch.empty(self.shape, device="meta").copy_(torch.empty(src.shape, device="meta"))


KERNELS: dict[Any, Any] = {
    aten.empty.memory_format: empty,
    aten.empty_strided.default: empty_strided,
    aten.empty_like.default: empty_like,
    aten.new_empty.default: new_empty,
    aten.new_empty_strided.default: new_empty_strided,
    aten.clone.default: clone,
    aten.lift_fresh_copy.default: lift_fresh_copy,
    aten.copy_.default: copy_,
    aten._copy_from.default: _copy_from,
    aten._to_copy.default: _to_copy,
    aten._local_scalar_dense.default: _local_scalar_dense,
    aten.equal.default: equal,
    aten._efficientzerotensor.default: _efficientzerotensor,
}
