"""How tensors are cut into parts, along those axes of a mesh that a function is mapped over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch.utils._pytree import tree_leaves

from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.spec import Entry, ShardingError, Spec, axes_of, checked

Entries = tuple[Entry, ...]


def first_dims(tensors: Any) -> set[int]:
    """The sizes of the first dims of all tensors in a tree; 0 for one without dims."""
    return {leaf.shape[0] if leaf.dim() else 0 for leaf in tree_leaves(tensors)}


@dataclass(frozen=True)
class Cut:
    """The axes of a mesh, by name, along which tensors are cut; XLA's partitioner has the others."""

    mesh: Mesh
    names: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """How many chips lie along each axis."""
        return {name: self.mesh.axis_size(name) for name in self.names}

    def entries(self, shape: Sequence[int], spec: Spec) -> Entries:
        """The spec of a whole tensor, with an entry for each dim. `ShardingError` as of `mark_sharding`."""
        return self._ours(checked(shape, self.mesh, spec))

    def entries_of_part(self, shape: Sequence[int], spec: Spec) -> Entries:
        """The spec by which parts of this shape are put together."""
        sizes = self.mesh.sizes
        whole = list(shape)
        for dim, entry in enumerate(spec[: len(whole)]):  # what it should not name is refused below
            whole[dim] *= prod(sizes.get(name, 1) for name in axes_of(entry))
        return self.entries(whole, spec)

    def part(self, shape: Sequence[int], entries: Entries) -> tuple[int, ...]:
        """The shape of one chip's part."""
        return tuple(d // self._n(axes_of(e)) for d, e in zip(shape, entries, strict=True))

    def whole(self, shape: Sequence[int], entries: Entries) -> tuple[int, ...]:
        """The shape of all parts together."""
        return tuple(d * self._n(axes_of(e)) for d, e in zip(shape, entries, strict=True))

    def unnamed(self, entries: Entries) -> list[str]:
        """The axes along which chips have the same part."""
        named = {name for entry in entries for name in axes_of(entry)}
        return [name for name in self.names if name not in named]

    def n_alike(self, entries: Entries) -> int:
        """How many chips have the same part."""
        return self._n(self.unnamed(entries))

    def _n(self, names: Sequence[str]) -> int:
        return prod(self.mesh.axis_size(name) for name in names)

    def _ours(self, entries: Entries) -> Entries:
        for name in [n for entry in entries for n in axes_of(entry)]:
            if name not in self.names:
                raise ShardingError(
                    f"Tensors are not cut along the axis {name!r}.",
                    saw=f"the spec {entries!r}",
                    expected=f"axes of {self.names}, those that `axis_names` says",
                )
        return entries
