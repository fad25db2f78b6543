"""The parts of a tensor that lies on a mesh, and how it lies, as torch_xla tells it.

torch_xla's marked tensors are of a class of their own, with attributes for this. Here they are plain tensors:
`give_attributes` gives `torch.Tensor` the attributes, which raise `AttributeError` for a tensor that does not
lie on a mesh.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
import torch

import torch_pjrt_spmd
from torch_pjrt.errors import UnsupportedError
from torch_pjrt.extend import is_pjrt
from torch_xla import runtime
from torch_xla.distributed.spmd.marking import (
    ShardingType,
    XLAShardedTensor,
    mark_sharding,
    sharding_text,
)
from torch_xla.distributed.spmd.mesh import OpSharding


@dataclass(eq=False)
class XLAShard:
    """The part of a tensor that one chip has.

    data          what is in it, on the CPU.
    indices       where it lies in the tensor, a slice for each dim; `...` if each chip has the whole.
    shard_device  the chip, by its number. replica_id: how many chips before it have the same part.
    """

    data: torch.Tensor
    indices: list[slice] | EllipsisType
    shard_device: str
    replica_id: int = 0

    @property
    def unpadded_data(self) -> torch.Tensor:
        """`data`: parts are not padded."""
        return self.data


def local_shards(tensor: torch.Tensor) -> list[XLAShard]:
    """The parts of this process's chips: torch_xla's property of that name."""
    whole = sharding_type(tensor) is ShardingType.REPLICATED
    seen: Counter[str] = Counter()
    shards = []
    for shard in torch_pjrt_spmd.local_shards(tensor):
        slices = [
            slice(*part.indices(size)) for part, size in zip(shard.index, tensor.shape, strict=True)
        ]
        shards.append(
            XLAShard(shard.data, ... if whole else slices, f"{shard.device}", seen[f"{slices}"])
        )
        seen[f"{slices}"] += 1
    return shards


def load_local_shards_(tensor: torch.Tensor, shards: Sequence[XLAShard]) -> None:
    """Write the data of `shards`, all that `local_shards` gave, to `tensor`, in place.

    Raises `RuntimeError` if there are fewer or more of them, for data of another shape, and for a tensor of
    which each chip has the whole; `UnsupportedError` in a run of several processes.
    """
    if runtime.process_count() > 1:
        raise UnsupportedError(
            "A process writes its shards alone.",
            saw=f"a run of {runtime.process_count()} processes",
            hint="torch.distributed.checkpoint loads shards on any mesh",
        )
    now = local_shards(tensor)
    if sharding_type(tensor) is ShardingType.REPLICATED:
        raise RuntimeError(
            "Each chip has the whole of this tensor: it has no shards to be written."
        )
    if len(shards) != len(now):
        raise RuntimeError(f"{len(shards)} shards were given for a tensor of {len(now)} shards.")
    values = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    for own, given in zip(now, shards, strict=True):
        if given.data.shape != own.data.shape:
            raise RuntimeError(
                f"A shard of {list(given.data.shape)} was given where {list(own.data.shape)} lies."
            )
        values[tuple(own.indices)] = given.data.to(tensor.dtype)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        tensor.copy_(values)


def from_cpu_shards(
    shards: Sequence[torch.Tensor],
    op_sharding: OpSharding,
    global_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """The tensor whose parts are `shards`, CPU tensors in the order of the chips' numbers, on the mesh.

    global_shape    smaller than what the parts are together, where the last ones are padded.

    Raises `RuntimeError` for another number of parts than chips, and for a shape that is not of such parts.
    """
    mesh, entries = op_sharding.mesh, op_sharding.axes()
    lengths = [math.prod(mesh.mesh_shape[axis] for axis in axes) for axes in entries]
    if len(shards) != mesh.size() or shards[0].dim() > len(entries):
        raise RuntimeError(f"{len(shards)} shards were given for {mesh.size()} chips.")
    lengths = lengths[: shards[0].dim()]
    whole = [n * size for n, size in zip(lengths, shards[0].shape, strict=True)]
    shape = whole if global_shape is None else list(global_shape)
    parts = [-(-size // n) for size, n in zip(shape, lengths, strict=False)]
    if len(shape) != len(whole) or parts != list(shards[0].shape):
        raise RuntimeError(
            f"Shards of {list(shards[0].shape)}, {lengths} along each dim, are no tensor of {shape}."
        )
    values = torch.empty(whole, dtype=shards[0].dtype, device="cpu")
    for place, number in np.ndenumerate(mesh.get_logical_mesh()):
        at = []
        for axes, size in zip(entries, shards[0].shape, strict=False):
            sizes = [mesh.mesh_shape[axis] for axis in axes]
            index = int(np.ravel_multi_index([place[axis] for axis in axes], sizes)) if axes else 0
            at.append(slice(index * size, (index + 1) * size))
        values[tuple(at)] = shards[int(number)]
    tensor = values[tuple(slice(size) for size in shape)].to("pjrt")
    return mark_sharding(tensor, mesh, op_sharding.partition_spec[: tensor.dim()])


def sharding_type(tensor: torch.Tensor) -> ShardingType | None:
    """TILED if each chip has another part, PARTIAL if some have the same one, REPLICATED if all have all.

    None for a tensor that lies on one chip.
    """
    lies = torch_pjrt_spmd.sharding_of(tensor)
    if lies is None:
        return None
    lengths = dict(zip(lies.mesh.axis_names, lies.mesh.shape, strict=True))
    axes = [
        axis for entry in lies.spec for axis in (entry if isinstance(entry, tuple) else (entry,))
    ]
    parts = math.prod(lengths[axis] for axis in axes if axis is not None)
    if parts == 1:
        return ShardingType.REPLICATED
    return ShardingType.TILED if parts == lies.mesh.size else ShardingType.PARTIAL


def give_attributes() -> None:
    """Let marked tensors have the attributes of torch_xla's `XLAShardedTensor`."""
    tensor: Any = torch.Tensor
    tensor.local_shards = _of_marked("local_shards", local_shards)
    tensor.sharding_type = _of_marked("sharding_type", sharding_type)
    tensor.sharding_spec = _of_marked("sharding_spec", sharding_text)
    tensor.placements = _of_marked("placements", torch_pjrt_spmd.placements_of)
    tensor.global_tensor = _of_marked("global_tensor", lambda t: t)
    tensor.load_local_shards_ = _of_marked(
        "load_local_shards_", lambda t: functools.partial(load_local_shards_, t)
    )


def _of_marked(name: str, of: Callable[[torch.Tensor], Any]) -> property:
    def get(self: torch.Tensor) -> Any:
        if not (is_pjrt(self) and isinstance(self, XLAShardedTensor)):
            raise AttributeError(f"`{name}`: this tensor does not lie on a mesh")
        return of(self)

    return property(get, doc=f"`{name}` of a tensor that `mark_sharding` was given.")
