"""A state as the pieces that a checkpoint has: tensors by their parts, and other objects.

A state is a dict of tensors, of nested dicts and lists of them, of plain objects, and of what has
`state_dict` and `load_state_dict`: modules, optimizers, schedules, loaders. Each leaf has a name, the same
that PyTorch's `torch.distributed.checkpoint` gives it, and a path, which keeps apart what the name does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torch_pjrt.extend import ArrivingParts, PartsLater, is_pjrt

Box = tuple[tuple[int, ...], tuple[int, ...]]  # where a part begins, and how large it is
Path = tuple[Any, ...]  # keys of mappings, and (i,) for places in lists


@dataclass(slots=True)
class Piece:
    """A part of a tensor that this process has.

    box    where it lies in the tensor.
    read   gives it as a CPU tensor, to be read only: of a tensor of the device once it has been copied.
    begin  where in what `read` gives it lies, if not at its beginning: pieces that are large are divided.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    box: Box
    read: Callable[[], torch.Tensor]
    begin: tuple[int, ...] | None = None

    def content(self) -> torch.Tensor:
        """The piece as a CPU tensor, to be read only."""
        whole = self.read()
        if self.begin is not None:
            for dim, (begin, n) in enumerate(zip(self.begin, self.box[1], strict=True)):
                whole = whole.narrow(dim, begin, n)
        return whole


@dataclass(frozen=True, eq=False)
class Target:
    """A part of a tensor that this process has, to be filled. put: takes it as a CPU tensor of any dtype."""

    box: Box
    put: Callable[[torch.Tensor], Any]
    into: torch.Tensor | None = None


def is_stateful(value: Any) -> bool:
    """Whether it is asked for its state."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def asked(state: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """What a state has: leaves, and what is asked for its state, wherever mappings and lists have it."""
    for key, value in state.items():
        yield from _walked(value, (key,), is_stateful)


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of nested mappings, and of lists that have mappings or tensors in them."""
    return _walked(value, path, _never)


def _never(value: Any) -> bool:
    return False


def _walked(value: Any, path: Path, ends: Callable[[Any], bool]) -> Iterator[tuple[Path, Any]]:
    """The leaves, of which those are some where it `ends`."""
    if isinstance(value, torch.Tensor) or ends(value):  # before what takes longer to find out
        yield path, value
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _walked(inner, (*path, key), ends)
    elif isinstance(value, list) and _is_nested(value, ends):
        for i, inner in enumerate(value):
            yield from _walked(inner, (*path, (i,)), ends)
    else:
        yield path, value


def _is_nested(value: list[Any], ends: Callable[[Any], bool]) -> bool:
    return any(
        isinstance(inner, (Mapping, torch.Tensor))
        or (isinstance(inner, list) and _is_nested(inner, ends))
        or ends(inner)
        for inner in value
    )


def name_of(path: Path) -> str:
    """The name of a leaf: its keys, with dots between."""
    return ".".join(str(key[0] if isinstance(key, tuple) else key) for key in path)


def set_at(nested: Any, path: Path, value: Any) -> None:
    """Put a leaf at its path, and what it takes to hold it."""
    for key, following in zip(path, [*path[1:], None], strict=True):
        held: Any = value
        if following is not None:
            held = [] if isinstance(following, tuple) else {}
        if isinstance(key, tuple):
            [i] = key
            nested.extend([None] * (i + 1 - len(nested)))
            if following is None or nested[i] is None:
                nested[i] = held
            nested = nested[i]
        else:
            if following is None or key not in nested:
                nested[key] = held
            nested = nested[key]


def pieces_of(name: str, tensor: torch.Tensor, parts: PartsLater) -> list[Piece]:
    """The parts of a tensor that this process has, each once."""
    if type(tensor) is torch.Tensor:
        shape, dtype, tensor = tuple(tensor.shape), tensor.dtype, tensor.detach()
        return [Piece(name, shape, dtype, box, read) for box, read in _boxes(tensor, parts)]
    found = []
    for offset, local, whole in _locals(tensor):
        for box, read in _boxes(local, parts):
            moved = tuple(a + b for a, b in zip(offset, box[0], strict=True))
            found.append(Piece(name, tuple(whole), tensor.dtype, (moved, box[1]), read))
    return found


def targets_of(tensor: torch.Tensor) -> list[Target]:
    """The same, to be filled."""
    return [
        Target(
            (tuple(a + b for a, b in zip(offset, t.box[0], strict=True)), t.box[1]), t.put, t.into
        )
        for offset, local, _ in _locals(tensor)
        for t in _targets(local)
    ]


def _locals(tensor: torch.Tensor) -> list[tuple[tuple[int, ...], torch.Tensor, torch.Size]]:
    """What this process has of a tensor, as ordinary tensors: where each begins in the whole, and its shape.

    Of PyTorch's DTensor and ShardedTensor, each process has a part.
    """
    from torch.distributed._shard.sharded_tensor.api import ShardedTensor
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if isinstance(tensor, DTensor):
        if tensor.device_mesh.get_coordinate() is None:
            return []
        sizes, offset = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
        empty = not all(sizes) and tensor.numel()
        return [] if empty else [(tuple(offset), tensor.to_local().detach(), tensor.shape)]
    if isinstance(tensor, ShardedTensor):
        return [
            (tuple(shard.metadata.shard_offsets), shard.tensor.detach(), tensor.size())
            for shard in tensor.local_shards()
        ]
    return [((0,) * tensor.dim(), tensor.detach(), tensor.shape)]


def _boxes(
    tensor: torch.Tensor, parts: PartsLater
) -> Iterator[tuple[Box, Callable[[], torch.Tensor]]]:
    if not is_pjrt(tensor):
        yield ((0,) * tensor.dim(), tuple(tensor.shape)), OfHost(tensor)
        return
    for index, read in parts.of(tensor):
        yield _box(index), read


class OfHost:
    """Reads a tensor of the CPU, or of a device that is not ours, as it is when `copy` is called."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def copy(self) -> None:
        self.tensor = self.tensor.clone().cpu().resolve_conj().resolve_neg()

    def __call__(self) -> torch.Tensor:
        return self.tensor


def _targets(tensor: torch.Tensor) -> list[Target]:
    if not is_pjrt(tensor):
        box = ((0,) * tensor.dim(), tuple(tensor.shape))
        return [Target(box, tensor.copy_, tensor if tensor.device.type == "cpu" else None)]
    arriving = ArrivingParts(tensor)
    return [
        Target(_box(index), lambda part, index=index: arriving.put(index, part))
        for index in arriving.indices
    ]


def _box(index: tuple[slice, ...]) -> Box:
    return tuple(s.start for s in index), tuple(s.stop - s.start for s in index)
