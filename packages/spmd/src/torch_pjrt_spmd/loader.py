"""`DeviceLoader`: batches of any loader, each chip's part on its way while the last one is computed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch

import torch_pjrt
from torch_pjrt_spmd import marks, partitioner
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.own_batches import is_over_processes, own_rows_of, value_of_own_part
from torch_pjrt_spmd.spec import Spec, checked

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh
    from torch_pjrt_spmd.mesh import Mesh


class DeviceLoader(torch_pjrt.DeviceLoader):
    """As `torch_pjrt.DeviceLoader`, with the tensors of each batch spread over a mesh.

    spec   of all tensors of a batch; one of fewer dims takes as many entries as it has.

    gives  "batch": each process's loader gives whole batches, in each process the same, of which it uploads
           its own rows. "part": it gives this process's rows alone. None: a `DataLoader` with a dataset of
           rows is made to load this process's rows alone; one with PyTorch's `DistributedSampler` gives
           parts; any other gives batches. In one process these are the same.

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

    if isinstance(getattr(loader, "sampler", None), DistributedSampler):
        return loader, "part"
    of_own_rows = own_rows_of(loader, mesh, spec[0] if len(spec) else None)
    return (loader, "batch") if of_own_rows is None else (of_own_rows, "part")
