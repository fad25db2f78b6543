"""`as_mesh`: PyTorch's meshes and JAX's as this package's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.distributed.device_mesh import DeviceMesh

from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.one_process_mesh import OneProcessMesh
from torch_pjrt_spmd.sub_mesh import SubMesh

if TYPE_CHECKING:
    import jax

    AnyMesh: TypeAlias = Mesh | SubMesh | DeviceMesh | jax.sharding.Mesh


def as_mesh(mesh: AnyMesh) -> Mesh | SubMesh:
    """The `Mesh` that any kind of mesh is; of a part that was sliced off by names, the `SubMesh`.

    All functions of this package take what this one does: a `Mesh`, `mesh["model"]`, PyTorch's `DeviceMesh`
    and slices of it, JAX's `Mesh`. Within `torch.compile(fullgraph=True)` only the first two: call this one
    before. `TypeError` for anything else; `SettingError` for a mesh of chips that this process has not.
    """
    if isinstance(mesh, (Mesh, SubMesh)):
        return mesh
    if torch.compiler.is_compiling():
        raise TypeError(
            "within torch.compile a mesh is a Mesh of torch_pjrt_spmd or some axes of one: "
            "call as_mesh(mesh) outside of it"
        )
    if isinstance(mesh, OneProcessMesh):
        return mesh.of
    if isinstance(mesh, DeviceMesh):
        return _of_device_mesh(mesh)
    import jax

    if isinstance(mesh, jax.sharding.Mesh):
        return Mesh.from_jax(mesh)
    raise TypeError(
        f"a mesh is a Mesh of torch_pjrt_spmd, PyTorch's DeviceMesh or JAX's Mesh, saw {mesh!r}"
    )


def _of_device_mesh(mesh: DeviceMesh) -> Mesh | SubMesh:
    root = mesh._get_root_mesh()
    names, of_root = mesh.mesh_dim_names, root.mesh_dim_names
    if root is mesh or names is None or of_root is None or not set(names) <= set(of_root):
        return Mesh.from_device_mesh(mesh)
    return Mesh.from_device_mesh(root)[names]
