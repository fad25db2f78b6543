"""`mark_sharding` and its kin: saying how a tensor lies on a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt.extend import (
    Value,
    annotate,
    buffer_of,
    is_pjrt,
    placed,
    spec_and_offset,
    store,
    upload,
    value_of,
    wrap_sized,
)
from torch_pjrt_spmd import marks, partitioner
from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.sharding import sharding_of
from torch_pjrt_spmd.spec import ShardingError, Spec, checked

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement


def mark_sharding(tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> torch.Tensor:
    """Spread a tensor over a mesh: its memory, and the work of what is computed with it.

    tensor  a parameter, buffer, input or activation on the device, of any shape.
    spec    for each dim the name of a mesh axis, a tuple of names, or None: each chip has all of it.

    Returns the tensor. Its values do not change, and those of what is computed with it only as sums in
    another order do. What is on the device is moved now; what is pending is computed there. In-place
    writes, the gradient and an optimizer's state keep the sharding. Within `torch.compile` use the tensor
    that is returned: only that one is marked.

    Raises `ShardingError` for an axis that the mesh lacks or that is used twice, too many entries, and a
    dim that its chips do not divide; `TypeError` for what is no tensor of the device.

        mark_sharding(w, Mesh((2, 4), ("data", "model")), (None, "model"))
    """
    if torch.compiler.is_compiling():
        entries = checked(tensor.shape, mesh, spec)
        return annotate(tensor, marks.KIND, *mesh.written(), entries)
    if mesh.target != marks.target() and mesh.target is not None:
        return _noted(tensor, mesh, spec)
    _check(tensor)
    entries = checked(tensor.shape, mesh, spec)
    partitioner.take_over()
    how = marks.asked(*mesh.written(), entries)

    def annotated(x: torch.Tensor) -> torch.Tensor:
        marks.go_to(how)
        return annotate(x, marks.KIND, *mesh.written(), entries)

    if not _fills_its_buffer(tensor) and not _laid_out_as(tensor):
        if not tensor.is_leaf and tensor.requires_grad:
            return annotated(tensor)  # a part of an activation
        with torch.no_grad():
            tensor.detach().copy_(annotated(tensor.detach()))
        return tensor
    value = value_of(tensor.detach())
    if value.array is None:
        store(tensor, value_of(annotated(tensor.detach())))
    elif value.array.sharding != how and marks.target() is None:
        buffer_of(tensor).value = Value.of_array(value.spec, placed(value.array, how))
    marks.mark(tensor, how, marks.target())
    if tensor.requires_grad and not tensor.is_leaf:
        tensor.register_hook(annotated)
    return tensor


def _noted(tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> torch.Tensor:
    """The tensor, of any device, marked for a target's chips: nothing of it moves."""
    partitioner.take_over()
    how = marks.sharding(*mesh.written(), checked(tensor.shape, mesh, spec))
    marks.mark(tensor, how, mesh.target)
    return tensor


def clear_sharding(tensor: torch.Tensor) -> torch.Tensor:
    """Forget how a tensor was marked; it lies whole on each chip of its mesh. Returns it.

    `TypeError` for what is no tensor of the device.
    """
    _check(tensor)
    found = sharding_of(tensor)
    if found is not None:
        mark_sharding(tensor, found.mesh, ())
    marks.unmark(tensor)
    return tensor


def shard_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Have a tensor lie as another one of as many dims does. Returns the tensor.

    Raises as `mark_sharding` does; `ShardingError` if the other one is on one chip.
    """
    found = sharding_of(other)
    if found is None:
        raise ShardingError(
            "The tensor to lie as another one lies does so on one chip.",
            saw=f"a tensor of {list(other.shape)}",
            hint="mark_sharding(other, mesh, spec) first",
        )
    return mark_sharding(tensor, found.mesh, found.spec)


def distribute_tensor(
    tensor: torch.Tensor, mesh: Mesh, placements: Sequence[Placement] | Spec
) -> torch.Tensor:
    """A tensor of the device with the content of one of the host, of which each chip gets its own part.

    tensor      on the CPU; one of the device is marked, as by `mark_sharding`.
    placements  PyTorch's `Shard(dim)` or `Replicate()` for each axis of the mesh, or a spec.

    The device never has the whole of it in one place. `requires_grad` is kept; the result is a leaf.
    Raises as `mark_sharding` does; `ShardingError` for a `Partial` placement, which no tensor starts with.

        batch = distribute_tensor(batch, mesh, ("data", None))
    """
    spec = spec_of_placements(placements, mesh, tensor.dim())
    if is_pjrt(tensor):
        return mark_sharding(tensor, mesh, spec)
    if mesh.target is not None:
        return _noted(tensor, mesh, spec)
    entries = checked(tensor.shape, mesh, spec)
    partitioner.take_over()
    how = marks.sharding(*mesh.written(), entries)
    value = upload(tensor, sharding=how)
    result = wrap_sized(value, value.spec)
    result.requires_grad_(tensor.requires_grad)
    marks.mark(result, how)
    return result


def spec_of_placements(placements: Any, mesh: Mesh, n_dims: int) -> Spec:
    """The spec that DTensor's placements, one for each axis of the mesh, say; a spec as it is."""
    if not any(hasattr(p, "is_shard") for p in placements):
        return placements
    if len(placements) != len(mesh.shape):
        raise ShardingError(
            "There is one placement for each axis of the mesh.",
            saw=f"{len(placements)} placements, axes {mesh.axis_names}",
        )
    axes: list[tuple[str, ...]] = [()] * n_dims
    for name, placement in zip(mesh.axis_names, placements, strict=True):
        if placement.is_partial():
            raise ShardingError(
                "A tensor cannot be put on a mesh as parts of a sum.",
                saw=repr(placement),
                expected="Shard(dim) or Replicate()",
            )
        if placement.is_shard():
            dim = placement.dim + n_dims * (placement.dim < 0)
            if not 0 <= dim < n_dims:
                raise ShardingError(
                    f"There is no dim {placement.dim} to spread.", saw=f"a tensor of {n_dims} dims"
                )
            axes[dim] += (name,)
    return tuple(names or None for names in axes)


def _fills_its_buffer(tensor: torch.Tensor) -> bool:
    buffer = buffer_of(tensor)
    if not buffer.viewed:
        return buffer.padded is None
    spec, offset = spec_and_offset(tensor)
    return spec == buffer.spec and not offset and buffer.padded is None


def _laid_out_as(tensor: torch.Tensor) -> bool:
    """Have the tensor's buffer hold an array of its dims, if the tensor is all of it; whether it does."""
    buffer = buffer_of(tensor)
    spec, offset = spec_and_offset(tensor)
    fits = spec.dense and spec.numel == buffer.spec.numel and spec.dtype == buffer.spec.dtype
    if not fits or offset or buffer.padded is not None or tensor.is_conj() or tensor.is_neg():
        return False
    buffer.hold_again((value_of(tensor.detach()), spec, True, False))
    return True


def _check(tensor: object) -> None:
    if not is_pjrt(tensor):
        saw = f"{tensor.device}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(
            f"a sharding is of a tensor on the device, saw {saw}: "
            "`tensor.to('pjrt')`, or `distribute_tensor(tensor, mesh, spec)`"
        )
