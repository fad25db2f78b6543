"""Arguments of the true size, padded: on the host where that is cheap, without a program for each size."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from torch_pjrt.extend import Uploaded, Value, because, host_array, put, upload, value_of, wrap
from torch_pjrt.extend.padding import resized
from torch_pjrt.plugin import TensorSpec, aten, client, contiguous_spec, spec_of

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
        value = _counts[key] = upload(torch.tensor(n, device="cpu"))
        if len(_counts) > _REMEMBERED:
            _counts.popitem(last=False)
    return value


def padded(tensor: torch.Tensor, shape: tuple[int, ...]) -> tuple[Value, TensorSpec]:
    """A tensor of the device with zeros behind its elements, up to `shape`, and what it looks like."""
    small = tensor
    for d, (size, stride, capacity) in enumerate(
        zip(tensor.shape, tensor.stride(), shape, strict=True)
    ):
        if size != capacity and size and stride == 0:
            small = small.narrow(d, 0, 1)  # repeated as often as there is room
    capacities = tuple(
        1 if there == 1 and size != 1 else capacity
        for there, size, capacity in zip(small.shape, tensor.shape, shape, strict=True)
    )
    value = value_of(small)
    if capacities != tuple(small.shape):
        value = _padded_value(value, small, capacities)
    if capacities != shape:
        repeated = wrap(value, contiguous_spec(capacities, tensor.dtype)).expand(shape)
        return value_of(repeated), contiguous_spec(shape, tensor.dtype)
    return value, _like(tensor, shape)


def _like(tensor: torch.Tensor, shape: tuple[int, ...]) -> TensorSpec:
    """What a tensor of another size looks like that lies in memory in the same order."""
    spec = spec_of(tensor.shape, tensor.dtype, tensor.stride())
    return resized(spec, shape) if spec.dense else contiguous_spec(shape, tensor.dtype)


def empty_capacity(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What lies behind the elements: anything, since nobody reads it."""
    return np.zeros(shape, dtype)


def _padded_value(value: Value, tensor: torch.Tensor, shape: tuple[int, ...]) -> Value:
    known = _padded.get(value)
    if known is not None and shape in known:
        return known[shape]
    nbytes = value.spec.numel * value.spec.dtype.itemsize
    here = client().chip.platform == "cpu"
    if value.array is None or not (here or nbytes <= _MOST_BY_WAY_OF_THE_HOST):
        pad = [n for d in reversed(range(tensor.ndim)) for n in (0, shape[d] - tensor.shape[d])]
        whole = wrap(value, contiguous_spec(tensor.shape, tensor.dtype))
        return value_of(aten.constant_pad_nd.default(whole, pad, 0))
    with because("padding to a bucket"):
        host = host_array(value)
    capacity = empty_capacity(shape, host.dtype)
    capacity[tuple(map(slice, host.shape))] = host
    spec = contiguous_spec(shape, value.spec.dtype)
    array = put(capacity)
    made: Value = Value.of_array(spec, array)
    if isinstance(value, Uploaded):
        made = Uploaded.of_array(spec, array)
        made.range = min(value.range[0], 0), max(value.range[1], 0)
    if not value.is_slot:
        _padded.setdefault(value, {})[shape] = made
    return made
