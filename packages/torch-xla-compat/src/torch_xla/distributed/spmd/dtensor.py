"""What PyTorch's `distribute_tensor` and `distribute_module` call for a mesh of the device type "xla"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import torch_pjrt_spmd
from torch_xla.absent import absent
from torch_xla.distributed.spmd.marking import that_divide
from torch_xla.distributed.spmd.mesh import Mesh

__getattr__ = absent(
    __name__,
    {
        "auto_policy": "`torch_pjrt_spmd.auto_shard(model, example_inputs, mesh)` finds and applies a plan"
    },
)


def convert_to_xla_mesh(dt_mesh: Any) -> Mesh:
    """The `Mesh` of PyTorch's `DeviceMesh`."""
    names = dt_mesh.mesh_dim_names or tuple(f"x{i}" for i in range(dt_mesh.mesh.dim()))
    return Mesh(dt_mesh.mesh.flatten().tolist(), tuple(dt_mesh.mesh.shape), names)


def convert_to_xla_partition_spec(
    tensor: torch.Tensor, placements: Sequence[Any]
) -> tuple[Any, ...]:
    """For each dim of `tensor` the numbers of the mesh axes whose placement is `Shard` of it."""
    axes: list[list[int]] = [[] for _ in range(tensor.dim())]
    for axis, placement in enumerate(placements):
        if placement.is_shard():
            axes[placement.dim].append(axis)
    return tuple(
        None if not found else found[0] if len(found) == 1 else tuple(found) for found in axes
    )


def xla_distribute_tensor(
    tensor: torch.Tensor, device_mesh: Any, placements: Sequence[Any] | None = None
) -> torch.Tensor:
    """`torch_pjrt_spmd.distribute_tensor`: each part of a CPU tensor on its chip.

    A dim that chips do not divide lies whole on each, as with `mark_sharding`.
    """
    from torch.distributed.tensor import Replicate

    ours = convert_to_xla_mesh(device_mesh)
    where = list(placements or [Replicate()] * len(ours.mesh_shape))
    names = [
        ours.axis_names[axis] if placed.is_shard() else None for axis, placed in enumerate(where)
    ]
    spec = [
        tuple(
            name
            for name, placed in zip(names, where, strict=True)
            if name and placed.dim % tensor.dim() == dim
        )
        for dim in range(tensor.dim())
    ]
    whole = [dim for dim, kept in enumerate(that_divide(tensor, ours, tuple(spec))) if kept is None]
    where = [Replicate() if p.is_shard() and p.dim % tensor.dim() in whole else p for p in where]
    return torch_pjrt_spmd.distribute_tensor(tensor, ours.pjrt, where)


def xla_distribute_module(
    module: torch.nn.Module,
    device_mesh: Any = None,
    partition_fn: Callable[..., None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> torch.nn.Module:
    """`torch_pjrt_spmd.distribute_module`; the functions are called with the mesh that was given."""
    mesh = None if device_mesh is None else convert_to_xla_mesh(device_mesh).pjrt

    def with_own(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        if function is None or device_mesh is None:
            return function
        return lambda *args: function(*args[:-1], device_mesh)

    functions = map(with_own, (partition_fn, input_fn, output_fn))
    return torch_pjrt_spmd.distribute_module(module, mesh, *functions)
