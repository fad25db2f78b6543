"""Along which axes of a mesh a model is spread, and which of them have copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torch_pjrt.extend import client
from torch_pjrt_spmd import Mesh, ShardingError, as_mesh, current_mesh

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh
    from torch_pjrt_spmd.spec import Entry

Names = str | Sequence[str]
AXIS = "fsdp"


@dataclass(frozen=True)
class Axes:
    """A mesh, and what its axes are for.

    shard      parameters lie in parts along these.
    replicate  each chip along these has the same part; batches are spread along both.
    """

    mesh: Mesh
    shard: tuple[str, ...]
    replicate: tuple[str, ...] = ()

    @property
    def n_parts(self) -> int:
        """In how many parts a parameter lies."""
        return prod([self.mesh.axis_size(name) for name in self.shard])

    @property
    def batch(self) -> tuple[str, ...]:
        """Along which a batch is spread, in the mesh's order."""
        data = {*self.shard, *self.replicate}
        return tuple(name for name in self.mesh.axis_names if name in data)

    @property
    def n_batches(self) -> int:
        """In how many parts a batch lies."""
        return prod([self.mesh.axis_size(name) for name in self.batch])

    def spec_of(self, shape: Sequence[int], before: Sequence[Entry]) -> tuple[Entry, ...] | None:
        """The spec of a parameter that lies like `before`; None where no dim can be spread.

        That is the first dim if the chips divide it and nothing else has spread it; else the largest such
        dim; else one that others have spread and that these divide further.
        """
        entries = [*before, *[None] * (len(shape) - len(before))]
        free = [d for d, n in enumerate(shape) if not entries[d] and n and n % self.n_parts == 0]
        if free:
            dim = 0 if 0 in free else max(free, key=lambda d: shape[d])
            return self._at(entries, dim, ())
        for dim, n in enumerate(shape):
            entry = entries[dim]
            others = (entry,) if isinstance(entry, str) else tuple(entry or ())
            parts = self.n_parts * prod(map(self.mesh.axis_size, others))
            if others and n and n % parts == 0:
                return self._at(entries, dim, others)
        return None

    def spec_at(
        self, dim: int, shape: Sequence[int], before: Sequence[Entry], name: str
    ) -> tuple[Entry, ...]:
        """The spec of a parameter that is spread along a dim of the user's."""
        entries = [*before, *[None] * (len(shape) - len(before))]
        at = dim % len(shape) if -len(shape) <= dim < len(shape) else None
        if at is None or entries[at] or shape[at] % self.n_parts:
            raise ShardingError(
                f"`{name}` cannot be spread along dim {dim}.",
                saw=f"{list(shape)}, which lies as {tuple(before)}",
                expected=f"a dim that {self.n_parts} chips divide and nothing else has spread",
            )
        return self._at(entries, at, ())

    def _at(self, entries: list[Entry], dim: int, others: tuple[str, ...]) -> tuple[Entry, ...]:
        names = (*others, *self.shard)
        entries[dim] = names[0] if len(names) == 1 else names
        return tuple(entries)

    def without(self, spec: Sequence[Entry]) -> tuple[Entry, ...]:
        """The spec of the same tensor when it is gathered."""
        left = []
        for entry in spec:
            names = (entry,) if isinstance(entry, str) else tuple(entry or ())
            names = tuple(name for name in names if name not in self.shard)
            left.append(names[0] if len(names) == 1 else names or None)
        return tuple(left)


def axes_of(mesh: AnyMesh | None, shard: Names | None, replicate: Names | None) -> Axes:
    """What `fully_shard` was told: a mesh, or the one in use, or all chips; and the names of axes.

    Of a mesh with one axis that is the one. Of one with two, parameters are spread along the second and
    have copies along the first, as with PyTorch's FSDP. `ShardingError` for more without `shard`, for axes
    that the mesh lacks, and for one that is to do both.
    """
    given = as_mesh(mesh or current_mesh() or Mesh((len(client().chips),), (AXIS,)))
    names = given.axis_names
    of_shard, of_copies = _names(shard), _names(replicate)
    if of_shard is None:
        left = tuple(name for name in names if name not in (of_copies or ()))
        if len(left) > 2 or not left or (len(left) == 2 and of_copies is not None):
            raise ShardingError(
                "The mesh has several axes: which of them parameters are spread along is not said.",
                saw=f"axes {names}",
                hint='fully_shard(model, mesh=mesh["fsdp"]), or shard_axes="fsdp"',
            )
        of_shard = left[-1:]
        of_copies = left[:-1] if of_copies is None else of_copies
    of_copies = of_copies or ()
    if unknown := [n for n in (*of_shard, *of_copies) if n not in names]:
        raise ShardingError(
            "The mesh lacks axes that parameters are to be spread along, or have copies along.",
            saw=repr(unknown),
            expected=f"some of {names}",
        )
    if not of_shard or len({*of_shard, *of_copies}) < len((*of_shard, *of_copies)):
        raise ShardingError(
            "Each axis has one use, and at least one spreads parameters.",
            saw=f"shard_axes {of_shard}, replicate_axes {of_copies}",
        )
    return Axes(given.root, of_shard, of_copies)


def _names(names: Names | None) -> tuple[str, ...] | None:
    return (names,) if isinstance(names, str) else None if names is None else tuple(names)
