"""Meshes by torch_xla's names, each around a `torch_pjrt_spmd.Mesh`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import torch_pjrt_spmd
from torch_pjrt.errors import SettingError
from torch_xla import runtime

PartitionSpec = Sequence[Any]
_global: list[Any] = []


class Mesh:
    """Chips in rows and columns.

    device_ids  the chips' numbers, as many as the mesh has, in row-major order.
    mesh_shape  how many lie along each axis.
    axis_names  of each axis its name; None: `x0`, `x1`, ...

    `pjrt` is the same mesh for functions of `torch_pjrt_spmd`. Raises `SettingError` as
    `torch_pjrt_spmd.Mesh`.
    """

    def __init__(
        self, device_ids: Any, mesh_shape: Sequence[int], axis_names: Sequence[str] | None = None
    ) -> None:
        self.device_ids = np.asarray(device_ids).reshape(-1)
        self.mesh_shape = tuple(int(n) for n in mesh_shape)
        self.axis_names = tuple(axis_names or (f"x{i}" for i in range(len(self.mesh_shape))))
        self.pjrt = torch_pjrt_spmd.Mesh(
            self.mesh_shape, self.axis_names, tuple(int(n) for n in self.device_ids)
        )

    def size(self) -> int:
        """How many chips it has."""
        return self.pjrt.size

    def shape(self) -> OrderedDict[str, int]:
        """Of each axis how many chips lie along it."""
        return OrderedDict(zip(self.axis_names, self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """The chips' numbers as an array of `mesh_shape`."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """Which axis has the name; None if none has."""
        return self.axis_names.index(name) if name in self.axis_names else None

    def get_op_sharding(self, partition_spec: PartitionSpec) -> OpSharding:
        """How tensors lie on the mesh, for `_XLAC._global_tensor_from_cpu_shards`."""
        return OpSharding(self, tuple(partition_spec))

    def get_jax_mesh(self) -> Any:
        """The same as `jax.sharding.Mesh`."""
        return self.pjrt.jax_mesh

    @classmethod
    def from_str(cls, mesh_str: str) -> Mesh | None:
        """The mesh that `str(mesh)` was of; None for another text."""
        import re

        found = re.search(
            r"\{'device_ids': \[([\d, ]*)\], 'mesh_shape': \(([\d, ]*)\), 'axis_names': \((.*)\)\}",
            mesh_str,
        )
        if found is None:
            return None
        numbers = [[int(n) for n in text.split(",") if n.strip()] for text in found.groups()[:2]]
        names = re.findall(r"'([^']*)'", found[3])
        return cls(numbers[0], numbers[1], names)

    def __str__(self) -> str:
        return (
            f"{{'device_ids': {self.device_ids.tolist()}, 'mesh_shape': {self.mesh_shape}, "
            f"'axis_names': {self.axis_names}}}"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.pjrt == other.pjrt

    def __hash__(self) -> int:
        return hash(self.pjrt)


@dataclass(frozen=True)
class OpSharding:
    """How tensors lie on a mesh."""

    mesh: Mesh
    partition_spec: tuple[Any, ...]

    def axes(self) -> list[tuple[int, ...]]:
        """Of each dim the numbers of the mesh's axes that it is spread along."""
        entries = [e if isinstance(e, (tuple, list)) else (e,) for e in self.partition_spec]
        return [
            tuple(
                axis if isinstance(axis, int) else self.mesh.axis_names.index(axis)
                for axis in entry
                if axis is not None
            )
            for entry in entries
        ]


class HybridMesh(Mesh):
    """A mesh over slices: `dcn_mesh_shape` slices along each axis, `ici_mesh_shape` chips of each slice."""

    def __init__(
        self,
        *,
        ici_mesh_shape: Sequence[int],
        dcn_mesh_shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
    ) -> None:
        within = tuple(ici_mesh_shape)
        across = tuple(dcn_mesh_shape or (1,) * len(within))
        if len(across) != len(within):
            raise SettingError(
                "A hybrid mesh has as many axes across slices as within them.",
                saw=f"ici_mesh_shape={within}, dcn_mesh_shape={across}",
            )
        shape = tuple(a * b for a, b in zip(within, across, strict=True))
        names = tuple(axis_names or (f"x{i}" for i in range(len(shape))))
        if max(across) == 1:
            order = torch_pjrt_spmd.Mesh(shape, names).order
        else:
            order = torch_pjrt_spmd.Mesh.hybrid(within, across, names).order
        super().__init__(order, shape, names)


def set_global_mesh(mesh: Mesh) -> None:
    """The mesh that `get_global_mesh` gives, and on which what nobody marks has copies."""
    _global[:] = [mesh]
    torch_pjrt_spmd.use_mesh(mesh.pjrt)


def get_global_mesh() -> Mesh | None:
    """The one that was set; None if none was."""
    return _global[0] if _global else None


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """All chips along one axis."""
    count = runtime.global_runtime_device_count()
    return Mesh(range(count), (count,), (axis_name,) if axis_name else None)


def pjrt_mesh(mesh: Any) -> Any:
    """The mesh for functions of `torch_pjrt_spmd`: of a `Mesh`, or of PyTorch's `DeviceMesh` as it is."""
    return mesh.pjrt if isinstance(mesh, Mesh) else mesh


def pjrt_spec(mesh: Any, partition_spec: PartitionSpec) -> tuple[Any, ...]:
    """A spec of `torch_pjrt_spmd`: names of axes in place of their numbers."""
    names = torch_pjrt_spmd.as_mesh(pjrt_mesh(mesh)).axis_names
    return tuple(_named(entry, names) for entry in partition_spec)


def _named(entry: Any, names: Sequence[str]) -> Any:
    if isinstance(entry, (tuple, list)):
        return tuple(_named(one, names) for one in entry)
    return names[entry] if isinstance(entry, int) else entry
