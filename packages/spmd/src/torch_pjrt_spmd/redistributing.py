"""DTensor's `redistribute`, `full_tensor` and `to_local`, of tensors that are one piece for the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt import to_jax
from torch_pjrt.extend import Value, client, placed, wrap_sized
from torch_pjrt.plugin import contiguous_spec
from torch_pjrt_spmd import compiled_for, default_mesh, marks, partitioner
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.marking import annotated, check_on_device
from torch_pjrt_spmd.placements import spec_of_placements
from torch_pjrt_spmd.run_chips import run_chips
from torch_pjrt_spmd.sharding import sharding_of
from torch_pjrt_spmd.spec import ShardingError, Spec, checked

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement

    from torch_pjrt_spmd.any_mesh import AnyMesh


def redistribute(
    tensor: torch.Tensor, mesh: AnyMesh, placements: Sequence[Placement] | Spec
) -> torch.Tensor:
    """Another tensor of the same values that lies on the mesh as is said; `tensor` stays where it is.

    placements  PyTorch's `Shard(dim)` or `Replicate()` for each axis of the mesh, or a spec.

    It is recorded, like an operator, and gradients pass: how they lie is XLA's to decide. In-place writes
    to the result keep its sharding. On some axes of a mesh (`mesh["model"]`), XLA decides how it lies along
    the others. Raises as `mark_sharding` does; `ShardingError` for a tensor that is on other chips.

        whole = redistribute(x, mesh, (Replicate(), Replicate()))
    """
    ours = as_mesh(mesh)
    if not torch.compiler.is_compiling():
        check_on_device(tensor)
    entries = checked(tensor.shape, ours, spec_of_placements(placements, ours, tensor.dim()))
    if torch.compiler.is_compiling():
        return annotated(tensor, ours, entries, gradient=False)
    partitioner.take_over()
    how = marks.asked(*ours.root.written(), entries)
    lies = marks.how_it_lies(tensor)
    if lies is not None and lies.device_set != how.device_set:
        raise ShardingError(
            "A tensor is on other chips than the mesh.",
            saw=f"chips {_numbers(lies)}, the mesh has {_numbers(how)}",
            hint="mark_sharding(tensor, mesh, spec) moves it",
        )
    result = annotated(tensor, ours, entries, gradient=False)
    if ours.root is ours:
        marks.mark(result, how, compiled_for.target())
    return result


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor of the same values, whole on each chip of its mesh; one on one chip is given back.

    Runs what is pending if it is not known yet how the tensor lies. Gradients pass.
    """
    check_on_device(tensor)
    found = sharding_of(tensor)
    return tensor if found is None else redistribute(tensor, found.mesh, ())


def to_local(tensor: torch.Tensor, chip: int = 0) -> torch.Tensor:
    """The part of a tensor that one chip has, as a tensor of the device. Runs what is pending.

    chip  its index, as in `Mesh.devices` and `LocalShard.device`.

    It lies where a tensor lies that nobody has marked: on the first chip, or on each chip of the mesh in
    use. Only that part is moved, and it shares no memory with `tensor`. Gradients pass to the part's place.
    Code that each chip runs on its own part is not written with it; `local_shards` has all parts, on the CPU.
    Raises `ShardingError` for a chip that has no part, `TypeError` for a tensor of another device.

        assert to_local(w, 3).shape == (16, 2)
    """
    check_on_device(tensor)
    shards = {shard.device: shard for shard in to_jax(tensor.detach()).addressable_shards}
    chips = run_chips()
    shard = shards.get(chips[chip]) if 0 <= chip < len(chips) else None
    if shard is None:
        raise ShardingError(
            f"Chip {chip} has no part of the tensor.",
            expected=f"one of {[i for i, c in enumerate(chips) if c in shards]}",
        )
    return _Part.apply(tensor, shard)  # pyright: ignore[reportReturnType]


class _Part(torch.autograd.Function):
    """A shard as a tensor; its gradient is that of a slice."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, shard: Any) -> torch.Tensor:
        import jax

        ctx.index, ctx.shape = shard.index, tensor.shape
        first = jax.sharding.SingleDeviceSharding(client().chips[0])
        array = placed(shard.data, default_mesh.default() or first)
        spec = contiguous_spec(array.shape, tensor.dtype)
        return wrap_sized(Value.of_array(spec, array), spec)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        whole = grads[0].new_zeros(ctx.shape)
        whole[ctx.index] = grads[0]
        return whole, None


def _numbers(how: Any) -> list[int]:
    return sorted(chip.id for chip in how.device_set)
