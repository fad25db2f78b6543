"""The mesh on which lies what nobody marks, a copy on each chip."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch_pjrt_spmd import compiled_for
from torch_pjrt_spmd.taking_over import take_over

if TYPE_CHECKING:
    import jax

    from torch_pjrt_spmd.mesh import Mesh


class _InUse:
    """The mesh of the last `use_mesh`."""

    mesh: Mesh | None = None


_here = _InUse()


def in_use() -> Mesh | None:
    """The mesh of the last `use_mesh`."""
    return _here.mesh


def use(mesh: Mesh | None) -> Mesh | None:
    """Have unmarked tensors lie on this mesh; the one that was in use before."""
    take_over()
    before, _here.mesh = _here.mesh, mesh
    return before


def whole_on(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
    """A copy on each chip."""
    import jax

    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def mesh_of(sharding: jax.sharding.Sharding) -> jax.sharding.Mesh | None:
    """The mesh that a sharding speaks of; None for one that XLA has made up."""
    import jax

    if isinstance(sharding, jax.sharding.NamedSharding):
        return cast("jax.sharding.Mesh", sharding.mesh)
    return None


def default() -> jax.sharding.NamedSharding | None:
    """Where goes what nobody has placed: whole on each chip of the mesh in use."""
    mesh = _here.mesh
    if mesh is None or mesh.target not in (None, compiled_for.target()):
        return None
    whole = whole_on(mesh.jax_mesh)
    return compiled_for.there(whole) if mesh.target is None else whole
