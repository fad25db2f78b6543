"""Arguments of the true size, padded: on the host where that is cheap, without a program for each size."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from torch_pjrt.extend import Uploaded, Value, because, host_array, put, upload, value_of, wrap
from torch_pjrt.extend.padding import in_order_of
from torch_pjrt.plugin import Face, aten, client, contiguous_face, face_of

# What the device holds and is larger than this is padded there: that takes a program for its size.
_MOST_BY_WAY_OF_THE_HOST = 1 << 24  # bytes
_REMEMBERED = 1 << 12

_padded: WeakKeyDictionary[Value, dict[tuple[int, ...], Value]] = WeakKeyDictionary()
_counts: OrderedDict[Any, Value] = OrderedDict()


def count_value(n: int) -> Value:
    """The number on the device, an int64 without dims: uploaded once."""
    key = n, id(client())
    value = _counts.get(key)
    if value is None:
        value = _counts[key] = upload(torch.tensor(n))
        if len(_counts) > _REMEMBERED:
            _counts.popitem(last=False)
    return value


def padded(tensor: torch.Tensor, shape: tuple[int, ...]) -> tuple[Value, Face]:
    """A tensor of the device with zeros behind its elements, up to `shape`, and what it looks like."""
    small = tensor
    for d, (size, stride, room) in enumerate(
        zip(tensor.shape, tensor.stride(), shape, strict=True)
    ):
        if size != room and size and stride == 0:
            small = small.narrow(d, 0, 1)  # repeated as often as there is room
    rooms = tuple(
        1 if there == 1 and size != 1 else room
        for there, size, room in zip(small.shape, tensor.shape, shape, strict=True)
    )
    value = value_of(small)
    if rooms != tuple(small.shape):
        value = _padded_value(value, small, rooms)
    if rooms != shape:
        repeated = wrap(value, contiguous_face(rooms, tensor.dtype)).expand(shape)
        return value_of(repeated), contiguous_face(shape, tensor.dtype)
    return value, _like(tensor, shape)


def _like(tensor: torch.Tensor, shape: tuple[int, ...]) -> Face:
    """What a tensor of another size looks like that lies in memory in the same order."""
    face = face_of(tensor.shape, tensor.dtype, tensor.stride())
    return in_order_of(face, shape) if face.dense else contiguous_face(shape, tensor.dtype)


def empty_room(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What lies behind the elements: anything, since nobody reads it."""
    return np.zeros(shape, dtype)


def _padded_value(value: Value, tensor: torch.Tensor, shape: tuple[int, ...]) -> Value:
    known = _padded.get(value)
    if known is not None and shape in known:
        return known[shape]
    nbytes = value.face.numel * value.face.dtype.itemsize
    here = client().chip.platform == "cpu"
    if value.array is None or not (here or nbytes <= _MOST_BY_WAY_OF_THE_HOST):
        pad = [n for d in reversed(range(tensor.ndim)) for n in (0, shape[d] - tensor.shape[d])]
        whole = wrap(value, contiguous_face(tensor.shape, tensor.dtype))
        return value_of(aten.constant_pad_nd.default(whole, pad, 0))
    with because("padding to a bucket"):
        host = host_array(value)
    room = empty_room(shape, host.dtype)
    room[tuple(map(slice, host.shape))] = host
    face = contiguous_face(shape, value.face.dtype)
    array = put(room)
    made: Value = Value.of_array(face, array)
    if isinstance(value, Uploaded):
        made = Uploaded.of_array(face, array)
        made.range = min(value.range[0], 0), max(value.range[1], 0)
    if not value.is_bound:
        _padded.setdefault(value, {})[shape] = made
    return made
