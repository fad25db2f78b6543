"""Tensors whose size only the values decide: made with padding, and looked at with it.

A *padded* tensor has its true size for PyTorch. Its buffer holds an array with room for more elements
along one dim; what lies past the true ones is anything. A view of it is padded as well where each element
along the padded dim keeps to itself: rows may be split, transposed, expanded, and parts of each row taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of
from torch_pjrt.observe.causes import because
from torch_pjrt.tensor.storage.buffer import buffer_of, spec_and_offset, wrap
from torch_pjrt.tensor.storage.counts import Count, is_data_dependent, recent
from torch_pjrt.tensor.storage.padded_buffer import (
    PaddedBuffer,
    Parts,
    padded_tensor,
    resized,
)
from torch_pjrt.tensor.storage.transfer import host_array
from torch_pjrt.tensor.storage.view import content, read_value, value_of


@dataclass(frozen=True, slots=True)
class PaddedView:
    """What a tensor looks like with its padding: `spec` is that of `value`, and is padded along `dim`."""

    value: Value
    spec: TensorSpec
    dim: int
    count: Count

    def tensor(self) -> torch.Tensor:
        """An ordinary tensor with the padded size."""
        dense = self.spec.dense
        return wrap(
            self.value, self.spec if dense else contiguous_spec(self.spec.shape, self.spec.dtype)
        )

    def with_capacity(self, capacity: int) -> PaddedView:
        """The same elements with less padding."""
        if capacity == self.spec.shape[self.dim]:
            return self
        base = contiguous_spec(self.spec.shape, self.spec.dtype)
        part = spec_of(with_size(base.shape, self.dim, capacity), base.dtype, base.strides)
        value = read_value(self.value, base, part, 0)
        spec = resized(self.spec, with_size(self.spec.shape, self.dim, capacity))
        return PaddedView(value, spec, self.dim, self.count)


def with_count(
    padded: torch.Tensor, dim: int, count: Count, *, strides: Sequence[int] | None = None
) -> torch.Tensor:
    """The first `count.n` elements of an ordinary tensor along `dim`, as a padded tensor.

    It lies in memory as the tensor does, or as `strides` of the tensor's size say.

        >>> n = torch.tensor(2, device="pjrt")
        >>> with_count(torch.arange(4, device="pjrt"), 0, Count(2, value_of(n), 4))
        tensor([0, 1], device='pjrt:0')
    """
    spec = spec_and_offset(padded)[0]
    if strides is not None:
        spec = spec_of(spec.shape, spec.dtype, tuple(strides))
    if not spec.dense:
        spec = contiguous_spec(spec.shape, spec.dtype)
    parts = _parts(spec.shape, dim, count.n)
    return padded_tensor(PaddedBuffer(value_of(padded), spec, parts, dim=dim, count=count))


def _parts(capacities: Sequence[int], dim: int, size: int) -> tuple[Parts, ...]:
    return tuple(((c, size if d == dim else c),) for d, c in enumerate(capacities))


def read_count(value: torch.Tensor) -> Count:
    """The count that a 0-d int64 tensor holds: runs what is pending. There is no padding yet."""
    on_device = value_of(value)
    with because("a size that only values decide"):
        n = int(host_array(on_device))
    return Count(n, on_device, n)


def count_tensor(count: Count) -> torch.Tensor:
    """The number as a 0-d int64 tensor, before it is scaled."""
    return wrap(count.value, contiguous_spec((), torch.int64))


def padded_view(tensor: torch.Tensor) -> PaddedView | None:
    """How a tensor of data-dependent size looks with its padding.

    None where it shows single rows, or has no such size.

        >>> x = torch.tensor([1.0, 0.0, 2.0], device="pjrt").nonzero()  # two of at most three rows
        >>> view = padded_view(x)
        >>> view.spec.shape, view.dim, view.count
        ((3, 1), 0, Count(2 of 3))
    """
    buffer = buffer_of(tensor)
    if not is_data_dependent(buffer) or tensor.is_conj() or tensor.is_neg():
        return None
    if tensor.dtype != buffer.spec.dtype:
        return None
    shape, strides, offset = (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
    )
    if shape == buffer.spec.shape and strides == buffer.spec.strides and not offset:
        return PaddedView(buffer.padded, buffer.padded_spec, buffer.dim, buffer.count)
    found = _rows(buffer, shape, strides, offset) or _by_dims(buffer, shape, strides, offset)
    if found is None:
        return None
    spec, offset, dim, count = found
    value = read_value(buffer.padded, buffer.padded_spec, spec, offset)
    return PaddedView(value, spec, dim, count)


def expanded(tensor: torch.Tensor, dim: int, count: Count) -> PaddedView | None:
    """A tensor that repeats one element along `dim`, repeated as often as there is room."""
    if not tensor.shape[dim] == count.n != 1 or tensor.stride(dim) != 0:
        return None
    buffer = buffer_of(tensor)
    if is_data_dependent(buffer) or tensor.is_conj() or tensor.is_neg():
        return None
    spec = spec_of(
        with_size(tuple(tensor.shape), dim, count.capacity), tensor.dtype, tensor.stride()
    )
    value = read_value(content(buffer), buffer.spec, spec, int(tensor.storage_offset()))
    return PaddedView(value, spec, dim, count)


# A spec and an offset in the padded storage, the dim, its count.
_Found = tuple[TensorSpec, int, int, Count]


def _rows(
    buffer: PaddedBuffer, shape: Sequence[int], strides: Sequence[int], offset: int
) -> _Found | None:
    """Views of a buffer whose padded dim is the slowest: its padding is at the end, and changes no stride."""
    count = buffer.count
    spec = buffer.padded_spec
    row = spec.numel // spec.shape[buffer.dim] if spec.shape[buffer.dim] else 0
    if not row or spec.strides[buffer.dim] != row:
        return None
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if not stride or row % stride or size * stride != count.n * row:
            continue
        others = zip(_without(shape, dim), _without(strides, dim), strict=True)
        if offset + sum((n - 1) * s for n, s in others if n) < stride:
            whole = count.times(row // stride)
            if whole is not count:
                recent.add(whole)
            padded_shape = with_size(shape, dim, spec.shape[buffer.dim] * (row // stride))
            return spec_of(padded_shape, spec.dtype, tuple(strides)), offset, dim, whole
    return None


def _by_dims(
    buffer: PaddedBuffer, shape: Sequence[int], strides: Sequence[int], offset: int
) -> _Found | None:
    """Views each of whose dims goes along one dim of the buffer, the whole counted one among them."""
    base, padded = buffer.spec, buffer.padded_spec
    if buffer.count.n < 2 or not base.numel:
        return None
    order = sorted((d for d, n in enumerate(base.shape) if n > 1), key=lambda d: -base.strides[d])
    starts: dict[int, int] = {}
    for d in order:
        starts[d], offset = divmod(offset, base.strides[d])
    if offset or starts.pop(buffer.dim):
        return None
    source: dict[int, int] = {}
    steps = [0] * len(shape)
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == 1 or not stride:
            continue
        along = next((d for d in order if d not in source and stride >= base.strides[d]), None)
        if along is None or stride % base.strides[along]:
            return None
        source[along] = dim
        steps[dim] = stride // base.strides[along]
        if starts.get(along, 0) + (size - 1) * steps[dim] >= base.shape[along]:
            return None
    dim = source.get(buffer.dim)
    if dim is None or steps[dim] != 1 or shape[dim] != buffer.count.n:
        return None
    capacity = with_size(shape, dim, padded.shape[buffer.dim])
    of_dim = {dim: d for d, dim in source.items()}
    new = [padded.strides[of_dim[d]] * steps[d] if d in of_dim else 0 for d in range(len(shape))]
    start = sum(first * padded.strides[d] for d, first in starts.items())
    return spec_of(capacity, padded.dtype, tuple(new)), start, dim, buffer.count


def with_size(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """The shape with another size along `dim`."""
    return (*shape[:dim], size, *shape[dim + 1 :])


def _without(items: Sequence[int], position: int) -> list[int]:
    return [x for i, x in enumerate(items) if i != position]
