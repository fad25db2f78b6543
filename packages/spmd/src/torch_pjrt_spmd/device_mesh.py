"""`init_device_mesh`: PyTorch's, for the chips of this process."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from torch_pjrt.errors import SettingError
from torch_pjrt_spmd.mesh import Mesh


def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
) -> DeviceMesh:
    """PyTorch's `init_device_mesh` for the chips of this process: a `DeviceMesh` without process groups.

    device_type     "pjrt".
    mesh_dim_names  axes without a name are `dim_0`, `dim_1`, ...

    It goes wherever this package takes a mesh, and so do its slices: `mesh["model"]`. Raises `SettingError`
    for another device, and as `Mesh` does.

        mesh = init_device_mesh("pjrt", (2, 4), mesh_dim_names=("data", "model"))
    """
    if device_type != "pjrt":
        raise SettingError(
            "These meshes are of the device's chips.",
            saw=repr(device_type),
            expected="'pjrt'",
            hint="torch.distributed.device_mesh.init_device_mesh is PyTorch's own",
        )
    names = mesh_dim_names or tuple(f"dim_{i}" for i in range(len(mesh_shape)))
    return Mesh(tuple(mesh_shape), tuple(names)).to_device_mesh()
