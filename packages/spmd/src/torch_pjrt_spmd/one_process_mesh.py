"""PyTorch's `DeviceMesh` where one process drives all chips."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh

from torch_pjrt.errors import UnsupportedError

if TYPE_CHECKING:
    from torch_pjrt_spmd.mesh import Mesh
    from torch_pjrt_spmd.sub_mesh import SubMesh


class OneProcessMesh(DeviceMesh):
    """A `DeviceMesh` whose "ranks" are chips of this process: no process groups, and no rank but 0.

    Shapes, names and slices by names are PyTorch's. What would speak to other processes, and the rank along
    an axis, raise `UnsupportedError`: each tensor is all of itself here, and so is a batch.
    """

    def __init__(self, mesh: Mesh | SubMesh, root: OneProcessMesh | None = None) -> None:
        order = torch.tensor(mesh.root.order, device="cpu").reshape(mesh.root.shape)
        whole = tuple(
            slice(None) if name in mesh.axis_names else 0 for name in mesh.root.axis_names
        )
        ranks = order[whole]
        super().__init__(
            "pjrt",
            ranks,
            mesh_dim_names=mesh.axis_names,
            _init_backend=False,
            _rank=int(ranks.flatten()[0]),
        )
        self._dim_group_names: list[str] = []
        self._root_mesh = root
        self.of = mesh

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> OneProcessMesh:
        """Some of its axes. `KeyError` for a name that no axis has, as PyTorch's."""
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if not set(names) <= set(self.of.axis_names):
            raise KeyError(f"{names}: the mesh has the axes {self.of.axis_names}")
        if names == self.of.axis_names:
            return self
        root = self._get_root_mesh()
        assert isinstance(root, OneProcessMesh)
        return OneProcessMesh(self.of.root[names], root)

    def get_rank(self) -> int:
        """0: there is one process."""
        return 0

    def get_group(self, mesh_dim: int | str | None = None) -> NoReturn:
        raise _one_process("a process group")

    def get_all_groups(self) -> NoReturn:
        raise _one_process("process groups")

    def get_local_rank(self, mesh_dim: int | str | None = None) -> NoReturn:
        raise _one_process("a rank along an axis")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._root_mesh is None:
            return OneProcessMesh, (self.of,)
        return operator.getitem, (self._root_mesh, self.of.axis_names)


def _one_process(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"A mesh of one process has not {what}: each tensor, and each batch, is all of itself.",
        hint="the functions of `torch_pjrt_spmd` take this mesh, with the names of PyTorch's "
        "(`distribute_tensor`, `parallelize_module`, ...)",
    )
