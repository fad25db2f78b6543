"""Specs and PyTorch's placements: two ways to say how a tensor lies.

A spec says for each dim of a tensor over which axes of the mesh it is spread, placements for each axis of
the mesh which dim is spread over it. Where several axes spread one dim, placements mean the first axis of the
mesh to be the slowest. PyTorch says another order by `_StridedShard`, whose factor is the number of parts
that later axes of the mesh have cut the dim into before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.sharding import sharding_of
from torch_pjrt_spmd.spec import Entry, ShardingError, Spec, axes_of
from torch_pjrt_spmd.sub_mesh import SubMesh

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement


def spec_of_placements(placements: Any, mesh: Mesh | SubMesh, n_dims: int) -> Spec:
    """The spec that PyTorch's placements, one for each axis of the mesh, say; a spec as it is.

    Raises `ShardingError` for more or fewer placements than axes, `Partial`, a dim that the tensor has not,
    and a factor that other axes do not give.
    """
    if not any(hasattr(p, "is_shard") for p in placements):
        return placements
    if len(placements) != len(mesh.axis_names):
        raise ShardingError(
            "There is one placement for each axis of the mesh.",
            saw=f"{len(placements)} placements, axes {mesh.axis_names}",
        )
    axes: list[list[str]] = [[] for _ in range(n_dims)]
    # From the last axis to the first: an axis comes before those that cut its dim after it.
    for name, placement in reversed(list(zip(mesh.axis_names, placements, strict=True))):
        if placement.is_partial():
            raise ShardingError(
                "A tensor cannot be put on a mesh as parts of a sum.",
                saw=repr(placement),
                expected="Shard(dim) or Replicate()",
            )
        if placement.is_replicate():
            continue
        dim = placement.dim + n_dims * (placement.dim < 0)
        if not 0 <= dim < n_dims:
            raise ShardingError(
                f"There is no dim {placement.dim} to spread.", saw=f"a tensor of {n_dims} dims"
            )
        axes[dim].insert(_n_slower(placement, axes[dim], mesh), name)
    return tuple(tuple(names) or None for names in axes)


def placements_of_spec(spec: Sequence[Entry], mesh: Mesh | SubMesh) -> tuple[Placement, ...]:
    """PyTorch's placements, one for each axis of the mesh, that say what a spec with an entry a dim does."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    found: list[Any] = []
    for i, name in enumerate(mesh.axis_names):
        dim = next((dim for dim, entry in enumerate(spec) if name in axes_of(entry)), None)
        if dim is None:
            found.append(Replicate())
            continue
        axes = axes_of(spec[dim])
        slower = [a for a in axes[: axes.index(name)] if a in mesh.axis_names[i:]]
        factor = prod(map(mesh.axis_size, slower))
        found.append(Shard(dim) if factor == 1 else _StridedShard(dim, split_factor=factor))
    return tuple(found)


def placements_of(tensor: torch.Tensor) -> tuple[Placement, ...]:
    """PyTorch's placements of a tensor of the device, one for each axis of its mesh. Runs what is pending.

    `()` for one that is on one chip. Raises as `sharding_of` does.

        placements_of(mark_sharding(w, mesh, (None, "model")))  # (Replicate(), Shard(dim=1))
    """
    found = sharding_of(tensor)
    return () if found is None else placements_of_spec(found.spec, found.mesh)


def _n_slower(placement: Any, others: Sequence[str], mesh: Mesh | SubMesh) -> int:
    """How many of the other axes of the dim are slower than the one that is placed so."""
    factor = getattr(placement, "split_factor", 1)
    for n in range(len(others) + 1):
        if prod(map(mesh.axis_size, others[:n])) == factor:
            return n
    raise ShardingError(
        "The axes of the mesh do not cut a dim as often as the placement says.",
        saw=f"{placement!r}, after it {', '.join(others) or 'no axis'} of the dim",
    )
