"""`mark_sharding` and its kin: saying how a tensor lies on a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from torch_pjrt_spmd import compiled_for, marks, partitioner
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.memory_kinds import check_memory
from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.placements import spec_of_placements
from torch_pjrt_spmd.sharding import sharding_of
from torch_pjrt_spmd.spec import Entry, ShardingError, Spec, checked, joined

if TYPE_CHECKING:
    import jax
    from torch.distributed.tensor import Placement

    from torch_pjrt_spmd.any_mesh import AnyMesh
    from torch_pjrt_spmd.sub_mesh import SubMesh

    NamedSharding = jax.sharding.NamedSharding


def mark_sharding(
    tensor: torch.Tensor,
    mesh: AnyMesh,
    spec: Spec | Sequence[Placement],
    *,
    memory_kind: str | None = None,
) -> torch.Tensor:
    """Spread a tensor over a mesh: its memory, and the work of what is computed with it.

    tensor  a parameter, buffer, input or activation on the device, of any shape.
    mesh    a `Mesh`, PyTorch's `DeviceMesh`, JAX's mesh, or some axes of one: `mesh["model"]`.
    spec    for each dim the name of a mesh axis, a tuple of names, or None: each chip has all of it. Or
            PyTorch's `Shard(dim)` or `Replicate()` for each axis.
    memory_kind  "pinned_host": in the host's memory. A program that reads it brings it to the chips, each
            reader for itself; one that writes to it takes it back. None: in the chips' memory.

    Returns the tensor. Its values do not change, and those of what is computed with it only as sums in
    another order do. What is on the device is moved now; what is pending is computed there. In-place
    writes, the gradient and an optimizer's state keep the sharding.

    Within `torch.compile`, and of a view that is a part of another tensor (`x[:8]`), use the tensor that is
    returned: only that one is marked, and the other tensor lies as before.

    On some axes of a mesh, the tensor lies along the others as it did before. An activation that is
    pending and unmarked lies along them as XLA decides.

    Raises `ShardingError` for an axis that the mesh lacks or that is used twice, too many entries, a dim
    that its chips do not divide, and a parameter that is a part of another tensor; `TypeError` for what is
    no tensor of the device; `UnsupportedError` for memory that the chips lack, and for an activation in the
    host's memory.

        mark_sharding(w, Mesh((2, 4), ("data", "model")), (None, "model"))
    """
    mesh = as_mesh(mesh)
    if not isinstance(tensor, torch.Tensor):
        check_on_device(tensor)
    entries = checked(tensor.shape, mesh, spec_of_placements(spec, mesh, tensor.dim()))
    if memory_kind is not None:
        check_memory(mesh.root, memory_kind, tensor)
    if torch.compiler.is_compiling():
        return annotated(tensor, mesh, entries)
    if mesh.root.target not in (None, compiled_for.target()):
        return _noted(tensor, mesh, entries, memory_kind)
    check_on_device(tensor)
    partitioner.take_over()
    whole = _whole_spec(tensor, mesh, entries)
    how = None if whole is None else _in(memory_kind, marks.asked(*mesh.root.written(), whole))

    def as_marked(x: torch.Tensor) -> torch.Tensor:
        return annotated(x, mesh, entries) if whole is None else annotated(x, mesh.root, whole)

    if not _fills_its_buffer(tensor) and not _laid_out_as(tensor):
        if buffer_of(tensor).padded is None or (not tensor.is_leaf and tensor.requires_grad):
            if tensor.is_leaf and tensor.requires_grad:
                raise _part_of_another(tensor)
            return as_marked(tensor)
        with torch.no_grad():
            tensor.detach().copy_(as_marked(tensor.detach()))
        return tensor
    value = value_of(tensor.detach())
    if value.array is None:
        store(tensor, value_of(as_marked(tensor.detach())))
    elif how is not None and value.array.sharding != how and compiled_for.target() is None:
        buffer_of(tensor).value = Value.of_array(value.spec, placed(value.array, how))
    if how is not None:
        marks.mark(tensor, how, compiled_for.target())
    if tensor.requires_grad and not tensor.is_leaf:
        tensor.register_hook(as_marked)
    return tensor


def _in(memory_kind: str | None, how: NamedSharding) -> NamedSharding:
    return how if memory_kind is None else how.with_memory_kind(memory_kind)


def _noted(
    tensor: torch.Tensor,
    mesh: Mesh | SubMesh,
    entries: tuple[Entry, ...],
    memory_kind: str | None = None,
) -> torch.Tensor:
    """The tensor, of any device, marked for a target's chips: nothing of it moves."""
    partitioner.take_over()
    before = marks.mark_for(tensor, mesh.root.target)
    written = mesh.root.written()
    how = _in(memory_kind, marks.sharding(*written, _joined(before, mesh, entries, tensor)))
    marks.mark(tensor, how, mesh.root.target)
    return tensor


def annotated(
    x: torch.Tensor, mesh: Mesh | SubMesh, entries: tuple[Entry, ...], gradient: bool = True
) -> torch.Tensor:
    """Another tensor of the same values that lies as a spec says, one that `checked` has given.

    gradient  whether the value's gradient is to lie so, too.
    """
    written = mesh.root.written()
    if not torch.compiler.is_compiling():
        marks.go_to(marks.asked(*written, ()))
    if isinstance(mesh, Mesh):
        return annotate(x, marks.KIND if gradient else marks.KIND_FORWARD, *written, entries)
    kind = marks.ALONG if gradient else marks.ALONG_FORWARD
    return annotate(x, kind, *written, mesh.axis_names, entries)


def _whole_spec(
    tensor: torch.Tensor, mesh: Mesh | SubMesh, entries: tuple[Entry, ...]
) -> tuple[Entry, ...] | None:
    """The spec for all axes of the mesh: along those that are not spoken of as the tensor lies now.

    None for an activation of which nobody knows how it lies.
    """
    if isinstance(mesh, Mesh):
        return entries
    how = marks.how_it_lies(tensor)
    if how is None and tensor.requires_grad and not tensor.is_leaf:
        return None
    return _joined(how, mesh, entries, tensor)


def _joined(
    before: NamedSharding | None,
    mesh: Mesh | SubMesh,
    entries: tuple[Entry, ...],
    tensor: torch.Tensor,
) -> tuple[Entry, ...]:
    """The spec for all axes of the mesh of a tensor that has lain like this, if it did so on the mesh."""
    if isinstance(mesh, Mesh):
        return entries
    on = marks.asked if mesh.root.target is None else marks.sharding
    same = before is not None and before.mesh == on(*mesh.root.written(), ()).mesh
    spec = tuple(before.spec) if before is not None and same else ()
    return checked(tensor.shape, mesh.root, joined(spec, entries, mesh))


def clear_sharding(tensor: torch.Tensor) -> torch.Tensor:
    """Forget how a tensor was marked; it lies whole on each chip of its mesh. Returns it.

    Of a view that is a part of another tensor, another tensor is returned, as by `mark_sharding`. `TypeError`
    for what is no tensor of the device.
    """
    check_on_device(tensor)
    found = sharding_of(tensor)
    if found is not None:
        cleared = mark_sharding(tensor, found.mesh, ())
        if cleared is not tensor:
            return cleared
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
    tensor: torch.Tensor,
    mesh: AnyMesh,
    placements: Sequence[Placement] | Spec,
    *,
    memory_kind: str | None = None,
) -> torch.Tensor:
    """A tensor of the device with the content of one of the host, of which each chip gets its own part.

    tensor      on the CPU; one of the device is marked, as by `mark_sharding`.
    placements  PyTorch's `Shard(dim)` or `Replicate()` for each axis of the mesh, or a spec.
    memory_kind  as `mark_sharding` takes it.

    The device never has the whole of it in one place. `requires_grad` is kept; the result is a leaf.
    Raises as `mark_sharding` does; `ShardingError` for a `Partial` placement, which no tensor starts with.

        batch = distribute_tensor(batch, mesh, ("data", None))
    """
    mesh = as_mesh(mesh)
    if is_pjrt(tensor):
        return mark_sharding(tensor, mesh, placements, memory_kind=memory_kind)
    entries = checked(tensor.shape, mesh, spec_of_placements(placements, mesh, tensor.dim()))
    if memory_kind is not None:
        check_memory(mesh.root, memory_kind, tensor)
    if mesh.root.target is not None:
        return _noted(tensor, mesh, entries, memory_kind)
    partitioner.take_over()
    how = _in(memory_kind, marks.sharding(*mesh.root.written(), entries))
    value = upload(tensor, sharding=how)
    result = wrap_sized(value, value.spec)
    result.requires_grad_(tensor.requires_grad)
    marks.mark(result, how)
    return result


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


def _part_of_another(tensor: torch.Tensor) -> ShardingError:
    whole = buffer_of(tensor).spec
    return ShardingError(
        "A parameter that is a part of another tensor lies as that does.",
        saw=f"a view of {list(tensor.shape)} of a tensor of {list(whole.shape)}",
        hint="mark the whole tensor, or `clone()` the part first",
    )


def check_on_device(tensor: object) -> None:
    if not is_pjrt(tensor):
        saw = f"{tensor.device}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(
            f"a sharding is of a tensor on the device, saw {saw}: "
            "`tensor.to('pjrt')`, or `distribute_tensor(tensor, mesh, spec)`"
        )
