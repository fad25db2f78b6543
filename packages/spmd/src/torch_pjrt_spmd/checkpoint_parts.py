"""Tensors of the device as `torch.distributed.checkpoint` sees them: by the parts that chips have.

PyTorch asks a tensor for `__create_write_items__`, `__create_chunk_list__` and `__get_tensor_shard__`, as
DTensor has them. From here on a tensor of the device has the three, and no other tensor does. So a spread
tensor is saved part by part, each part once, and loaded the same way, onto any mesh: the host never has more
of it than the part at hand.

What is loaded is put together in a part's memory on the host, since a reader brings pieces as they lie in
files. When a part is complete, which the planner is told (`commit_tensor`), it goes to its chips.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import MethodType
from typing import Any

import torch

from torch_pjrt.extend import ArrivingParts, Buffer, PartsHere, after_import, buffer_of, is_pjrt
from torch_pjrt_spmd.full_state_dicts import STATE_DICT, bring_parts

Index = tuple[slice, ...]
_PLANNER = "torch.distributed.checkpoint.default_planner"


class _OfDeviceTensors:
    """An attribute of tensors that only those of the device have: the function as their method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = function.__name__

    def __get__(self, tensor: torch.Tensor | None, kind: type | None = None) -> Any:
        if tensor is None:
            return (
                self._function
            )  # of the class, as of any method: PyTorch lists what tensors can do
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not is_pjrt(tensor):
            raise AttributeError(
                f"{type(tensor).__name__!r} object has no attribute {self._name!r}"
            )
        return MethodType(self._function, tensor)


@dataclass(eq=False)
class _Part:
    """One that is being put together on the host. missing: how many of its elements have not come."""

    index: Index
    content: torch.Tensor
    missing: int


@dataclass
class _Loading:
    """Of a tensor under one name of a state dict."""

    arriving: ArrivingParts
    parts: dict[tuple[int, ...], _Part] = field(default_factory=dict)


# Of each buffer that is being loaded, by the names that it has in the state dict.
_loading: weakref.WeakKeyDictionary[Buffer, dict[str, _Loading]] = weakref.WeakKeyDictionary()


@cache
def install() -> None:
    """Give tensors of the device what PyTorch's checkpoints ask for; once in a process."""
    for name, function in (
        ("__create_write_items__", _create_write_items),
        ("__create_chunk_list__", _create_chunk_list),
        ("__get_tensor_shard__", _get_tensor_shard),
    ):
        setattr(torch.Tensor, name, _OfDeviceTensors(function))
    after_import(_PLANNER, _listen_to_planner)
    after_import(STATE_DICT, bring_parts)


def offsets_of(index: Index) -> torch.Size:
    """Where a part begins."""
    return torch.Size(s.start for s in index)


def sizes_of(index: Index) -> torch.Size:
    """How large it is."""
    return torch.Size(s.stop - s.start for s in index)


def _create_write_items(self: torch.Tensor, fqn: str, tensor: torch.Tensor) -> list[Any]:
    """An item for each part that this process has; those of several processes are alike where copies are."""
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorProperties,
    )
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    tensor = tensor.detach()
    _loading.pop(buffer_of(tensor), None)
    properties = TensorProperties.create_from_tensor(tensor)
    items = []
    for index, _ in PartsHere().of(tensor):
        offsets, sizes = offsets_of(index), sizes_of(index)
        kind = WriteItemType.TENSOR if sizes == tensor.shape else WriteItemType.SHARD
        data = TensorWriteData(ChunkStorageMetadata(offsets, sizes), properties, tensor.size())
        items.append(WriteItem(MetadataIndex(fqn, offsets), kind, tensor_data=data))
    return items


def _create_chunk_list(self: torch.Tensor) -> list[Any]:
    """The parts that this process has; from now on the tensor is one that is being loaded."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    tensor = self.detach()
    _loading[buffer_of(tensor)] = {}
    if not tensor.numel():
        return []
    indices = ArrivingParts(tensor).indices
    return [ChunkStorageMetadata(offsets_of(index), sizes_of(index)) for index in indices]


def _get_tensor_shard(self: torch.Tensor, index: Any) -> torch.Tensor:
    """A part on the host: its content to be saved, or memory to be filled."""
    tensor = self.detach()
    loads = _loading.get(buffer_of(tensor))
    if loads is None:
        for where, read in PartsHere().of(tensor):
            if index.offset is None or offsets_of(where) == index.offset:
                return read()
        raise ValueError(f"No chip of this process has the part {index}.")
    load = loads.get(index.fqn)
    if load is None:
        load = loads[index.fqn] = _Loading(ArrivingParts(tensor))
    offsets = tuple(index.offset)
    if offsets not in load.parts:
        where = next(i for i in load.arriving.indices if offsets_of(i) == index.offset)
        empty = torch.empty(sizes_of(where), dtype=tensor.dtype, device="cpu")
        load.parts[offsets] = _Part(where, empty, empty.numel())
    return load.parts[offsets].content


def _listen_to_planner(module: Any) -> None:
    planner = module.DefaultLoadPlanner
    original = planner.commit_tensor

    def commit_tensor(self: Any, read_item: Any, tensor: torch.Tensor) -> None:
        original(self, read_item, tensor)
        target = self.state_dict.get(read_item.dest_index.fqn)
        if isinstance(target, torch.Tensor) and is_pjrt(target):
            _arrived(target.detach(), read_item)

    planner.commit_tensor = commit_tensor


def _arrived(tensor: torch.Tensor, item: Any) -> None:
    """A piece of a part has been read; the last one sends the part to its chips."""
    loads = _loading.get(buffer_of(tensor)) if type(tensor) is torch.Tensor else None
    load = loads.get(item.dest_index.fqn) if loads else None
    if load is None or loads is None:
        return
    offsets = tuple(item.dest_index.offset)
    part = load.parts[offsets]
    part.missing -= math.prod(item.lengths)
    if part.missing > 0:
        return
    del load.parts[offsets]
    if load.arriving.put(part.index, part.content):
        del loads[item.dest_index.fqn]
