"""Some axes of a mesh: what is said of these leaves the others as they are."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torch_pjrt.errors import SettingError

if TYPE_CHECKING:
    from torch_pjrt_spmd.mesh import Mesh


@dataclass(frozen=True)
class SubMesh:
    """Some axes of a mesh, with all of its chips: `mesh["model"]`.

    A tensor that is marked on it lies as the spec says along these axes. Along the others it lies as it
    did; what is pending and nobody has marked lies along them as XLA decides.

    root        the mesh.
    axis_names  those of its axes, in its order.

    Raises `SettingError` for a name that no axis has, that comes twice, or that is not in the mesh's order.
    """

    root: Mesh
    axis_names: tuple[str, ...]

    def __post_init__(self) -> None:
        there = self.root.axis_names
        if tuple(name for name in there if name in self.axis_names) != self.axis_names:
            raise SettingError(
                "The mesh has not these axes in this order.",
                saw=repr(self.axis_names),
                expected=f"some of {there}",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """How many chips lie along each of its axes."""
        return tuple(map(self.axis_size, self.axis_names))

    @property
    def size(self) -> int:
        """How many parts a tensor has that is spread over all of its axes."""
        return prod(self.shape)

    def axis_size(self, name: str) -> int:
        """How many chips lie along the axis. `KeyError` for a name that none of its axes has."""
        if name not in self.axis_names:
            raise KeyError(name)
        return self.root.axis_size(name)
