"""Tensors that are spread over a mesh, by torch_xla's names. A tensor that was marked is the same tensor."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch

import torch_pjrt_spmd
from torch_xla import runtime
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
    return torch_pjrt_spmd.mark_sharding(t, pjrt_mesh(mesh), that_divide(t, mesh, spec))


def that_divide(t: torch.Tensor, mesh: Mesh, spec: tuple[Any, ...]) -> tuple[Any, ...]:
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

    minibatch   each process loads its own rows only, which its chips must divide: else `RuntimeError`.
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

    def placed(self, t: torch.Tensor, device: Any) -> torch.Tensor:
        """A CPU tensor on the device, spread over the mesh: the whole, or the rows of this process."""
        if not self.minibatch:
            moved = t.to(device)
            self.apply(moved)
            return moved
        chips = runtime.addressable_runtime_device_count()
        if t.shape[0] % chips:
            raise RuntimeError(
                "When minibatch is configured, the per-host batch size must be divisible by local runtime "
                f"device count. Per host input data shape = {tuple(t.shape)}, "
                f"local_runtime_device_count = {chips}"
            )
        spec = pjrt_spec(self.mesh, self.partition_spec)
        return torch_pjrt_spmd.make_global_batch(t, pjrt_mesh(self.mesh), spec)


def sharding_text(t: torch.Tensor) -> str:
    """XLA's own text of how a tensor lies, `{devices=[4,1]0,1,2,3}`; empty for one that is on one chip."""
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as JaxSpec

    lies = torch_pjrt_spmd.sharding_of(t)
    if lies is None:
        return ""
    mesh = lies.mesh.root.jax_mesh
    sharding = NamedSharding(mesh, JaxSpec(*lies.spec))
    text = str(sharding._to_xla_hlo_sharding(t.dim()))
    listed = re.sub(r"<=\[([\d,]*)\](?:T\(([\d,]*)\))?", _listed, text)
    chips = [chip.id for chip in mesh.devices.flat]
    return re.sub(r"(?<=\])[\d,]+", lambda found: _chips_at(found[0], chips), listed)


def _chips_at(positions: str, chips: list[int]) -> str:
    """The numbers of the chips at those positions of the mesh."""
    return ",".join(str(chips[int(position)]) for position in positions.split(","))


def _listed(found: re.Match[str]) -> str:
    """`0,1,2,3` for `<=[4]`, XLA's shorter form: the numbers in a shape, whose dims may be turned."""
    shape, order = ([int(n) for n in (text or "").split(",") if n] for text in found.groups())
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return ",".join(map(str, numbers.transpose(order or None).flatten()))
