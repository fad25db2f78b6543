"""Tensors whose arrays have room along several dims: what compiled graphs with buckets hand to each other.

For PyTorch such a tensor has its true size. Whoever does not know of the room gets the true elements: cut
out on the host where they are read, by a program for these sizes else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.graph.face import Face, contiguous_face, face_of, storage_order
from torch_pjrt.graph.tape import Value
from torch_pjrt.tensor.buffer import Buffer, buffer_of, wrap_buffer
from torch_pjrt.tensor.view import read_value

# Of how many parts a dim is made, from the slowest to the fastest: (room, how many elements are there).
Parts = tuple[tuple[int, int], ...]
Names = tuple[tuple[Any, ...], ...]

_GONE: Any = None
_value: Any = Buffer.__dict__["value"]


class RoomyBuffer(Buffer):
    """A buffer whose array has more room along some dims than there are elements, while `padded` is there.

    A dim may be several merged into one, each with room of its own: the true elements are not the first then.

    padded  the array, with anything past the true elements.
    parts   of each dim.
    names   of each part, what its maker calls it.
    """

    __slots__ = ("names", "padded", "parts")

    def __init__(self, padded: Value, parts: tuple[Parts, ...], names: Names, like: Face) -> None:
        _value.__set__(self, None)
        self.padded = padded
        self.parts = parts
        self.names = names
        shape = tuple(math.prod(there for _, there in dim) for dim in parts)
        self.face = in_order_of(like, shape)
        self.viewed = True
        self.blank = False
        self.address = 0

    @property
    def value(self) -> Value | None:  # type: ignore[override]
        if self.padded is not _GONE:
            self.value = self._cut()
        return _value.__get__(self)

    @value.setter
    def value(self, value: Value | None) -> None:
        self.padded = _GONE
        _value.__set__(self, value)

    def _cut(self) -> Value:
        """The true elements."""
        split = contiguous_face(tuple(r for dim in self.parts for r, _ in dim), self.face.dtype)
        shape = tuple(there for dim in self.parts for _, there in dim)
        there = face_of(shape, split.dtype, split.strides)
        whole = contiguous_face(self.padded.face.shape, split.dtype)
        value = self.padded
        if whole is not split:
            value = read_value(value, whole, split, 0)
        cut = read_value(value, split, there, 0)
        if shape == self.face.shape:
            return cut
        merged = contiguous_face(self.face.shape, split.dtype)
        return read_value(cut, contiguous_face(shape, split.dtype), merged, 0)

    def cut_on_host(self, whole: torch.Tensor) -> torch.Tensor:
        """The true elements of what `padded` holds, which the host has."""
        split = whole.reshape([r for dim in self.parts for r, _ in dim])
        for place, (_, there) in enumerate(part for dim in self.parts for part in dim):
            split = split.narrow(place, 0, there)
        return split.reshape(self.face.shape)


def roomy_tensor(padded: Value, parts: tuple[Parts, ...], names: Names, like: Face) -> torch.Tensor:
    """A tensor of the true size on an array with room; its dims lie in memory in the order of `like`."""
    return wrap_buffer(RoomyBuffer(padded, parts, names, like))


def in_order_of(face: Face, shape: Sequence[int]) -> Face:
    """The dense face of this shape in the order of another dense one."""
    strides, step = [1] * len(shape), 1
    for d in reversed(storage_order(face)):
        strides[d] = step
        step *= max(shape[d], 1)
    return face_of(tuple(shape), face.dtype, tuple(strides))


def room_of(tensor: torch.Tensor) -> RoomyBuffer | None:
    """The buffer of a tensor that shows all of an array with room; None for others."""
    buffer = buffer_of(tensor)
    if buffer.__class__ is not RoomyBuffer or buffer.padded is _GONE:  # type: ignore[attr-defined]
        return None
    face = buffer.face
    if tensor.dtype != face.dtype or tensor.is_conj() or tensor.is_neg() or tensor.storage_offset():
        return None
    looks_so = tensor.shape == face.shape and tensor.stride() == face.strides
    return buffer if looks_so else None  # type: ignore[return-value]
