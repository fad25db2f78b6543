"""Tensors whose size only the values decide: made with room for more, and looked at with that room.

A *counted* tensor has its true size for PyTorch. Its buffer holds an array with room for more elements
along one dim; what lies past the true ones is anything. A view of it has room as well where each element
along the counted dim keeps to itself: rows may be split, transposed, expanded, and parts of each row taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_pjrt.graph.face import (
    Face,
    contiguous_face,
    contiguous_strides,
    face_of,
    storage_order,
)
from torch_pjrt.graph.tape import Value
from torch_pjrt.observe.causes import because
from torch_pjrt.tensor.buffer import (
    CountedBuffer,
    buffer_of,
    create_empty_tensor,
    look_of,
    wrap,
    wrap_buffer,
)
from torch_pjrt.tensor.counts import Count, is_counted, recent
from torch_pjrt.tensor.transfer import host_array
from torch_pjrt.tensor.view import content, read_value, value_of


@dataclass(frozen=True, slots=True)
class Roomy:
    """What a tensor looks like with its room: `face` is that of `value`, and has room along `dim`."""

    value: Value
    face: Face
    dim: int
    count: Count

    def tensor(self) -> torch.Tensor:
        """An ordinary tensor with the room's size."""
        dense = self.face.dense
        return wrap(
            self.value, self.face if dense else contiguous_face(self.face.shape, self.face.dtype)
        )

    def with_room(self, room: int) -> Roomy:
        """The same elements with less room."""
        if room == self.face.shape[self.dim]:
            return self
        base = contiguous_face(self.face.shape, self.face.dtype)
        part = face_of(_put(base.shape, self.dim, room), base.dtype, base.strides)
        value = read_value(self.value, base, part, 0)
        return Roomy(value, resized(self.face, self.dim, room), self.dim, self.count)


def counted(
    padded: torch.Tensor, dim: int, count: Count, *, strides: Sequence[int] | None = None
) -> torch.Tensor:
    """The first `count.n` elements of an ordinary tensor along `dim`, as a counted tensor.

    It lies in memory as the tensor does, or as `strides` of the tensor's size say.
    """
    face = look_of(padded)[0]
    if strides is not None:
        face = face_of(face.shape, face.dtype, tuple(strides))
    if not face.dense:
        face = contiguous_face(face.shape, face.dtype)
    buffer = CountedBuffer(value_of(padded), face, resized(face, dim, count.n), dim, count)
    if not buffer.face.plain:
        return wrap_buffer(buffer)
    tensor = create_empty_tensor(buffer.face.shape, buffer.face.dtype)
    tensor.untyped_storage().buffer = buffer
    return tensor


def read_count(value: torch.Tensor) -> Count:
    """The count that a 0-d int64 tensor holds: runs what is pending. There is no more room than that yet."""
    on_device = value_of(value)
    with because("a size that only values decide"):
        n = int(host_array(on_device))
    return Count(n, on_device, n)


def count_tensor(count: Count) -> torch.Tensor:
    """The number as a 0-d int64 tensor, before it is scaled."""
    return wrap(count.value, contiguous_face((), torch.int64))


def resized(face: Face, dim: int, size: int) -> Face:
    """A dense face in the same order of dims, with another size along `dim`."""
    shape = _put(face.shape, dim, size)
    order = storage_order(face)
    packed = contiguous_strides(tuple(shape[d] for d in order))
    strides = dict(zip(order, packed, strict=True))
    return face_of(shape, face.dtype, tuple(strides[d] for d in range(len(shape))))


def roomy(tensor: torch.Tensor) -> Roomy | None:
    """How a counted tensor looks with its room; None where it shows single rows, or is not counted."""
    buffer = buffer_of(tensor)
    if not is_counted(buffer) or tensor.is_conj() or tensor.is_neg():
        return None
    if tensor.dtype != buffer.face.dtype:
        return None
    shape, strides, offset = (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
    )
    if shape == buffer.face.shape and strides == buffer.face.strides and not offset:
        return Roomy(buffer.padded, buffer.padded_face, buffer.dim, buffer.count)
    found = _rows(buffer, shape, strides, offset) or _by_dims(buffer, shape, strides, offset)
    if found is None:
        return None
    face, offset, dim, count = found
    value = read_value(buffer.padded, buffer.padded_face, face, offset)
    return Roomy(value, face, dim, count)


def expanded(tensor: torch.Tensor, dim: int, count: Count) -> Roomy | None:
    """A tensor that repeats one element along `dim`, repeated as often as there is room."""
    if not tensor.shape[dim] == count.n != 1 or tensor.stride(dim) != 0:
        return None
    buffer = buffer_of(tensor)
    if is_counted(buffer) or tensor.is_conj() or tensor.is_neg():
        return None
    face = face_of(_put(tuple(tensor.shape), dim, count.room), tensor.dtype, tensor.stride())
    value = read_value(content(buffer), buffer.face, face, int(tensor.storage_offset()))
    return Roomy(value, face, dim, count)


_Found = tuple[
    Face, int, int, Count
]  # a face and an offset in the padded storage, the dim, its count


def _rows(
    buffer: CountedBuffer, shape: Sequence[int], strides: Sequence[int], offset: int
) -> _Found | None:
    """Views of a buffer whose counted dim is the slowest: its room is at the end, and changes no stride."""
    count = buffer.count
    face = buffer.padded_face
    row = face.numel // face.shape[buffer.dim] if face.shape[buffer.dim] else 0
    if not row or face.strides[buffer.dim] != row:
        return None
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if not stride or row % stride or size * stride != count.n * row:
            continue
        others = zip(_without(shape, dim), _without(strides, dim), strict=True)
        if offset + sum((n - 1) * s for n, s in others if n) < stride:
            whole = count.times(row // stride)
            if whole is not count:
                recent.add(whole)
            roomy_shape = _put(shape, dim, face.shape[buffer.dim] * (row // stride))
            return face_of(roomy_shape, face.dtype, tuple(strides)), offset, dim, whole
    return None


def _by_dims(
    buffer: CountedBuffer, shape: Sequence[int], strides: Sequence[int], offset: int
) -> _Found | None:
    """Views each of whose dims goes along one dim of the buffer, the whole counted one among them."""
    base, padded = buffer.face, buffer.padded_face
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
    room = _put(shape, dim, padded.shape[buffer.dim])
    of_dim = {dim: d for d, dim in source.items()}
    new = [padded.strides[of_dim[d]] * steps[d] if d in of_dim else 0 for d in range(len(shape))]
    start = sum(first * padded.strides[d] for d, first in starts.items())
    return face_of(room, padded.dtype, tuple(new)), start, dim, buffer.count


def _put(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _without(items: Sequence[int], place: int) -> list[int]:
    return [x for i, x in enumerate(items) if i != place]
