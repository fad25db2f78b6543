"""`DeviceLoader`: batches of any loader, each chip's part on its way while the last one is computed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch

import torch_pjrt
from torch_pjrt_spmd import marks, partitioner
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.own_batches import (
    OwnPart,
    is_over_processes,
    own_part,
    own_rows_of,
    value_of_own_part,
)
from torch_pjrt_spmd.spec import ShardingError, Spec, checked

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh
    from torch_pjrt_spmd.mesh import Mesh


class DeviceLoader(torch_pjrt.DeviceLoader):
    """As `torch_pjrt.DeviceLoader`, with the tensors of each batch spread over a mesh.

    spec   of all tensors of a batch; one of fewer dims takes as many entries as it has.

    gives  "batch": each process's loader gives whole batches, in each process the same, of which it uploads
           its own rows. "part": it gives this process's rows alone. None: a `DataLoader` with a dataset of
           rows is made to load this process's rows alone; one with PyTorch's `DistributedSampler` gives
           parts, and so does what says `gives = "part"` of itself (the loader, its dataset or its sampler);
           any other gives batches. In one process these are the same.

    A batch whose dims the chips do not divide raises `ShardingError` where it would have come: have the
    loader drop the last one, where that is smaller (`drop_last=True`).

        for x, y in DeviceLoader(loader, mesh, ("data",)):
            ...
    """

    def __init__(
        self,
        loader: Iterable[Any],
        mesh: AnyMesh,
        spec: Spec,
        prefetch: int = 2,
        *,
        gives: Literal["batch", "part"] | None = None,
    ) -> None:
        ours = as_mesh(mesh)
        partitioner.take_over()
        if gives is None and is_over_processes(ours.root):
            loader, gives = _own_rows(loader, ours.root, spec)

        def place(tensor: torch.Tensor) -> Any:
            if gives == "part":
                return value_of_own_part(tensor, ours.root, spec[: tensor.dim()])
            entries = checked(tensor.shape, ours, spec[: tensor.dim()])
            return marks.sharding(*ours.root.written(), entries)

        super().__init__(loader, prefetch=prefetch, place=place)


def _own_rows(loader: Any, mesh: Mesh, spec: Spec) -> tuple[Any, Literal["batch", "part"]]:
    """A loader for several processes, and what it gives."""
    from torch.utils.data import DistributedSampler

    entry = spec[0] if len(spec) else None
    for name in ("", "batch_sampler", "sampler", "dataset"):
        one = getattr(loader, name, None) if name else loader
        if getattr(one, "gives", None) == "part":
            _check_shard(getattr(one, "shard", None), own_part(mesh, entry))
            return loader, "part"
    if isinstance(getattr(loader, "sampler", None), DistributedSampler):
        return loader, "part"
    of_own_rows = own_rows_of(loader, mesh, entry)
    return (loader, "batch") if of_own_rows is None else (of_own_rows, "part")


def _check_shard(shard: Any, part: OwnPart) -> None:
    """That what a loader says to give are the rows that this process has."""
    expected = (part.first // part.count, part.n // part.count)
    if shard is not None and (shard.rank, shard.world_size) != expected:
        raise ShardingError(
            "The loader gives other rows than those that lie on the chips of this process.",
            saw=f"part {shard.rank} of {shard.world_size}",
            expected=f"part {expected[0]} of {expected[1]}",
            hint="DataShard.of_mesh(mesh, spec) of torch_pjrt_fsdp says which",
        )
