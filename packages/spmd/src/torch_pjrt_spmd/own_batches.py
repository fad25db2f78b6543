"""Batches of which each process has loaded its own rows, as tensors over the mesh of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from torch_pjrt.extend import Value, upload_parts, wrap_sized
from torch_pjrt.plugin import contiguous_spec
from torch_pjrt_spmd import marks
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.run_chips import own_process
from torch_pjrt_spmd.spec import Entry, ShardingError, Spec, axes_of, checked

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh
    from torch_pjrt_spmd.mesh import Mesh


@dataclass(frozen=True)
class OwnPart:
    """What this process has of a dim that is cut into n parts: those from `first` on, `count` of them."""

    first: int
    count: int
    n: int

    def rows(self, size: int) -> slice:
        """Its rows of a dim of this size, which n divides."""
        return slice(self.first * size // self.n, (self.first + self.count) * size // self.n)


def make_global_batch(batch: Any, mesh: AnyMesh, spec: Spec) -> Any:
    """Tensors over the mesh of all processes, of what each of them has loaded of a batch.

    batch  a CPU tensor, or tuples, lists and dicts with some; each process gives the rows that its chips
           hold, in the order of the processes' chips on the mesh. Of 4 processes of which each has 2 chips,
           and spec ("data",) over 8 chips, each gives a quarter of the rows.
    spec   of all tensors of the batch; one of fewer dims takes as many entries as it has.

    In one process alone this is `distribute_tensor`. Raises `ShardingError` for a dim that chips do not
    divide, and for a mesh on which a process's chips do not lie beside each other along an axis.

        x, y = make_global_batch((x_of_this_process, y_of_this_process), mesh, ("data",))
    """
    ours = as_mesh(mesh)

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        value = value_of_own_part(tensor, ours.root, spec[: tensor.dim()])
        return wrap_sized(value, value.spec)

    return tree_map_only(torch.Tensor, whole, batch)


def value_of_own_part(tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> Value:
    """The whole, of which this process has the given CPU tensor."""
    parts = [own_part(mesh, entry) for entry in [*spec, *[None] * (tensor.dim() - len(spec))]]
    for dim, (part, size) in enumerate(zip(parts, tensor.shape, strict=True)):
        if size % part.count:
            raise ShardingError(
                f"Dim {dim} of this process's part has {size} elements, which its {part.count} parts do not "
                "divide.",
                saw=f"a tensor of {list(tensor.shape)}, spec {tuple(spec)}, a mesh of {mesh.shape}",
            )
    shape = tuple(
        size * part.n // part.count for part, size in zip(parts, tensor.shape, strict=True)
    )
    entries = checked(shape, mesh, spec)
    starts = [part.rows(size).start for part, size in zip(parts, shape, strict=True)]

    def piece(index: tuple[slice, ...]) -> torch.Tensor:
        return tensor[
            tuple(
                slice(s.start - start, s.stop - start)
                for s, start in zip(index, starts, strict=True)
            )
        ]

    how = marks.sharding(*mesh.written(), entries)
    return upload_parts(contiguous_spec(shape, tensor.dtype), how, piece)


def own_part(mesh: Mesh, entry: Entry | Sequence[str]) -> OwnPart:
    """What this process has of a dim with this entry of a spec.

    Raises `ShardingError` where that is not one block.
    """
    names = axes_of(entry)
    here: set[int] = set()
    n = 1
    for name in names:
        n *= mesh.axis_size(name)
    for position, chip in _positions(mesh):
        if chip.process_index == own_process():
            number = 0
            for name in names:
                number = number * mesh.axis_size(name) + position[mesh.axis_names.index(name)]
            here.add(number)
    if not here:
        raise ShardingError("This process has no chips on the mesh.", saw=f"a mesh of {mesh.shape}")
    first = min(here)
    if max(here) - first + 1 != len(here):
        raise ShardingError(
            "The chips of this process do not lie beside each other.",
            saw=f"parts {sorted(here)} of {n} along {names}",
            hint="Mesh.hybrid puts the chips of a process beside each other",
        )
    return OwnPart(first, len(here), n)


def _positions(mesh: Mesh) -> Iterator[tuple[tuple[int, ...], Any]]:
    import numpy as np

    return np.ndenumerate(mesh.jax_mesh.devices)


def is_over_processes(mesh: Mesh) -> bool:
    """Whether the mesh has chips of other processes."""
    return any(chip.process_index != own_process() for _, chip in _positions(mesh))


class OwnRows:
    """A sampler of batches that takes this process's rows of each batch that another one gives.

    All processes must draw the same batches: that is compared at the first one of each epoch.
    """

    def __init__(self, batches: Iterable[Sequence[Any]], mesh: Mesh, part: OwnPart) -> None:
        self._batches, self._mesh, self._part = batches, mesh, part

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[Any]]:
        for number, batch in enumerate(self._batches):
            indices = list(batch)
            if number == 0:
                self._compare(indices)
            if len(indices) % self._part.n:
                raise ShardingError(
                    f"A batch has {len(indices)} rows, which {self._part.n} parts do not divide.",
                    hint="DataLoader(..., drop_last=True) leaves a smaller last one out",
                )
            yield indices[self._part.rows(len(indices))]

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler of the batches, if it asks."""
        for one in (self._batches, getattr(self._batches, "sampler", None)):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)  # type: ignore[union-attr]

    def _compare(self, indices: list[Any]) -> None:
        from torch_pjrt_spmd.distributed.launches import agree_on

        digest = hashlib.sha256(repr(indices).encode()).hexdigest()[:16]
        agree_on(self._mesh.jax_mesh.devices.flat, f"load a batch of indices {digest}", "batches")


# What a `DataLoader` is made with, beside its dataset and sampler.
_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


def own_rows_of(loader: Any, mesh: Mesh, entry: Entry | Sequence[str]) -> Any:
    """A `DataLoader` like this one that loads this process's rows alone; None for what is none, or has none.

    Its shuffling draws from PyTorch's generator of the CPU, or its own: in each process alike, where these
    have one seed.
    """
    from torch.utils.data import DataLoader, IterableDataset

    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_sampler is None:
        return None
    sampler = OwnRows(loader.batch_sampler, mesh, own_part(mesh, entry))
    options = {name: getattr(loader, name) for name in _OPTIONS}
    return DataLoader(loader.dataset, batch_sampler=sampler, **options)
