"""Specs: for each dim of a tensor the mesh axes that it is spread over.

An entry is the name of an axis, a tuple of names (the dim is spread over all of them, the first being the
slowest) or None (each chip has all of the dim). Dims that a spec leaves out at its end are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from torch_pjrt.errors import TorchPjrtError

if TYPE_CHECKING:
    import jax

    from torch_pjrt_spmd.mesh import Mesh
    from torch_pjrt_spmd.sub_mesh import SubMesh

Entry = str | tuple[str, ...] | None
Spec = Sequence[str | Sequence[str] | None]


class ShardingError(TorchPjrtError, ValueError):
    """A tensor cannot lie on the mesh as the spec says."""


def checked(shape: Sequence[int], mesh: Mesh | SubMesh, spec: Spec) -> tuple[Entry, ...]:
    """The spec with an entry for each dim of a tensor of this shape.

    Raises `ShardingError` for more entries than dims, an axis that the mesh lacks, an axis that is used
    twice, and a dim that its chips do not divide: XLA would keep that one whole without a word.
    """
    if isinstance(spec, str):
        raise _wrong(
            "A spec is a tuple with an entry for each dim, not a text.", shape, mesh, spec, (spec,)
        )
    entries = tuple(e if e is None or isinstance(e, str) else tuple(e) or None for e in spec)
    if len(entries) > len(shape):
        raise _wrong(
            f"The spec has {len(entries)} entries, the tensor {len(shape)} dims.", shape, mesh, spec
        )
    used: set[str] = set()
    for name in (name for entry in entries for name in axes_of(entry)):
        if name not in mesh.axis_names:
            raise _wrong(f"The mesh has no axis {name!r}.", shape, mesh, spec)
        if name in used:
            raise _wrong(
                f"The axis {name!r} is used twice: two dims cannot be spread over the same chips.",
                shape,
                mesh,
                spec,
            )
        used.add(name)
    for dim, (size, entry) in enumerate(zip(shape, entries, strict=False)):
        n = prod([mesh.axis_size(name) for name in axes_of(entry)])
        if size % n:
            raise _wrong(
                f"Dim {dim} has {size} elements, which {n} chips do not divide.",
                shape,
                mesh,
                spec,
                _fitting(size, mesh, used - set(axes_of(entry))),
            )
    return (*entries, *[None] * (len(shape) - len(entries)))


def joined(before: Sequence[Entry], entries: Sequence[Entry], mesh: SubMesh) -> tuple[Entry, ...]:
    """The spec for all axes of a mesh that says of some what `entries` do, of the others what `before` does.

    A dim that is spread over axes of both has the first of the mesh's as its slowest.
    """
    found: list[Entry] = []
    for i, entry in enumerate(entries):
        old = axes_of(before[i]) if i < len(before) else ()
        kept = tuple(name for name in old if name not in mesh.axis_names)
        names = kept + axes_of(entry)
        if kept and axes_of(entry):
            names = tuple(name for name in mesh.root.axis_names if name in names)
        found.append(names[0] if len(names) == 1 else names or None)
    return tuple(found)


def axes_of(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names in an entry."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def partition_spec(entries: Sequence[Entry]) -> jax.sharding.PartitionSpec:
    """JAX's form of a spec, without what says nothing at its end, so that equal ones are equal."""
    import jax

    kept = [axes[0] if len(axes := axes_of(e)) == 1 else axes or None for e in entries]
    while kept and kept[-1] is None:
        kept.pop()
    return jax.sharding.PartitionSpec(*kept)


def _fitting(size: int, mesh: Mesh | SubMesh, used: set[str]) -> Sequence[object]:
    """The axes, and tuples of them, that divide a dim of this size; but for those that other dims use."""
    free = [name for name in mesh.axis_names if name not in used]
    some = [names for n in range(1, len(free) + 1) for names in combinations(free, n)]
    fit = [names for names in some if size % prod(map(mesh.axis_size, names)) == 0]
    return [names[0] if len(names) == 1 else names for names in fit]


def _wrong(
    happened: str,
    shape: Sequence[int],
    mesh: Mesh | SubMesh,
    spec: object,
    fitting: Sequence[object] | None = None,
) -> ShardingError:
    axes = ", ".join(f"{n} {s}" for n, s in zip(mesh.axis_names, mesh.shape, strict=True))
    expected = None
    if fitting is not None:
        expected = f"one of {', '.join(map(repr, fitting))}" if fitting else "None for this dim"
    return ShardingError(
        happened,
        saw=f"a tensor of {list(shape)}, the mesh ({axes}), the spec {spec!r}",
        expected=expected or f"for each dim None, one of {mesh.axis_names}, or a tuple of these",
    )
