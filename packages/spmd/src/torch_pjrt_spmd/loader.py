"""`DeviceLoader`: batches of any loader, each chip's part on its way while the last one is computed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

import torch_pjrt
from torch_pjrt_spmd import marks, partitioner
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.spec import Spec, checked

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh


class DeviceLoader(torch_pjrt.DeviceLoader):
    """As `torch_pjrt.DeviceLoader`, with the tensors of each batch spread over a mesh.

    spec   of all tensors of a batch; one of fewer dims takes as many entries as it has.

    A batch whose dims the chips do not divide raises `ShardingError` where it would have come: have the
    loader drop the last one, where that is smaller (`drop_last=True`).

        for x, y in DeviceLoader(loader, mesh, ("data",)):
            ...
    """

    def __init__(self, loader: Iterable[Any], mesh: AnyMesh, spec: Spec, prefetch: int = 2) -> None:
        ours = as_mesh(mesh)
        partitioner.take_over()

        def place(tensor: torch.Tensor) -> Any:
            entries = checked(tensor.shape, ours, spec[: tensor.dim()])
            return marks.sharding(*ours.root.written(), entries)

        super().__init__(loader, prefetch=prefetch, place=place)
