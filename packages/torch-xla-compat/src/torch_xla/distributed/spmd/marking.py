"""Tensors that are spread over a mesh, by torch_xla's names. A tensor that was marked is the same tensor."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

import torch_pjrt_spmd
from torch_xla.distributed.spmd.mesh import Mesh, PartitionSpec, pjrt_mesh, pjrt_spec


class ShardingType(IntEnum):
    """Ways in which a tensor can lie; here a tensor is whole (REPLICATED) or in parts (TILED)."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


class _KnowsMarks(type):
    """A tensor counts as an `XLAShardedTensor` once it was marked: there is no class of its own for it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor) and torch_pjrt_spmd.sharding_of(instance) is not None
        )


class XLAShardedTensor(metaclass=_KnowsMarks):
    """What `isinstance` says of a tensor that lies on a mesh. `XLAShardedTensor(tensor)` is the tensor."""

    def __new__(cls, elem: torch.Tensor, *args: Any, **options: Any) -> Any:
        return elem


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """Spread `t` over `mesh`. Returns `t`, which is an instance of `XLAShardedTensor` from now on.

    partition_spec  for each dim an axis, by name or number, a tuple of them, or None.

    A dim that the chips of its axes do not divide, which torch_xla pads, lies whole on each of them: the
    values are the same, the memory is more, and a `ShardingWarning` says so. Otherwise raises as
    `torch_pjrt_spmd.mark_sharding`.
    """
    spec = pjrt_spec(mesh, partition_spec)
    return torch_pjrt_spmd.mark_sharding(t, pjrt_mesh(mesh), _that_divide(t, mesh, spec))


def _that_divide(t: torch.Tensor, mesh: Mesh, spec: tuple[Any, ...]) -> tuple[Any, ...]:
    """`spec` with None for the dims that its axes do not divide."""
    if len(spec) != t.dim():
        return spec  # refused, with a text that says so
    on = torch_pjrt_spmd.as_mesh(pjrt_mesh(mesh))
    lengths = dict(zip(on.axis_names, on.shape, strict=True))
    entries = list(spec)
    for dim, entry in enumerate(spec):
        axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        chips = math.prod(lengths.get(axis, 1) for axis in axes)
        if t.shape[dim] % chips:
            warnings.warn(
                f"Dim {dim} of a tensor of {list(t.shape)} lies whole on each chip of {axes}: {chips} chips "
                "do not divide it. torch_xla pads it. Pad it, for less memory.",
                torch_pjrt_spmd.ShardingWarning,
                stacklevel=3,
            )
            entries[dim] = None
    return tuple(entries)


def annotate_custom_sharding(
    t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec
) -> torch.Tensor:
    """`mark_sharding`."""
    return mark_sharding(t, mesh, partition_spec)


class MarkShardingFunction(torch.autograd.Function):
    """`MarkShardingFunction.apply(t, mesh, spec)`: a copy of `t` that is marked, and so is its gradient."""

    @staticmethod
    def forward(
        ctx: Any, t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec
    ) -> torch.Tensor:
        ctx.mesh, ctx.spec = mesh, partition_spec
        return mark_sharding(t.clone(), mesh, partition_spec)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return mark_sharding(gradients[0].clone(), ctx.mesh, ctx.spec), None, None


def mark_sharding_with_gradients(
    t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec
) -> torch.Tensor:
    """A copy of `t` that is marked, with a gradient that is marked the same way."""
    return MarkShardingFunction.apply(t, mesh, partition_spec)


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Forget how `t` was marked. Returns it."""
    return torch_pjrt_spmd.clear_sharding(t) if isinstance(t, XLAShardedTensor) else t


def shard_as(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Have `b` lie as `a` does, or `a` as `b` where only `b` is marked. Returns both."""
    if isinstance(a, XLAShardedTensor):
        torch_pjrt_spmd.shard_as(b, a)
    else:
        torch_pjrt_spmd.shard_as(a, b)
    return a, b


def wrap_if_sharded(x: Any) -> Any:
    """`x`: a tensor that is marked is its own wrapper."""
    return x


def wrap_as_sharded_tensor(
    t: torch.Tensor, mesh_shape: Any = None, partition_spec: Any = None
) -> torch.Tensor:
    """`t`."""
    return t


def unwrap_sharded_tensor(t: torch.Tensor) -> torch.Tensor:
    """`t`."""
    return t


@dataclass
class ShardingSpec:
    """How the tensors of a loader's batches lie: for `MpDeviceLoader(input_sharding=)`.

    minibatch   each process loads its own rows only.
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool | None = False

    def can_apply(self, t: torch.Tensor) -> bool:
        """Whether a tensor has as many dims as the spec has entries."""
        return t.dim() == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> None:
        """Mark the tensor."""
        mark_sharding(t, self.mesh, self.partition_spec)


def sharding_text(t: torch.Tensor) -> str:
    """XLA's own text of how a tensor lies, `{devices=[4,1]0,1,2,3}`; empty for one that is not marked."""
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as JaxSpec

    lies = torch_pjrt_spmd.sharding_of(t)
    if lies is None:
        return ""
    sharding = NamedSharding(lies.mesh.root.jax_mesh, JaxSpec(*lies.spec))
    return str(sharding._to_xla_hlo_sharding(t.dim()))
