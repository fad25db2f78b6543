"""`use_mesh`: the mesh on which tensors lie that nobody marks."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from torch_pjrt_spmd import default_mesh
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.mesh import Mesh

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh


class use_mesh:
    """Have tensors that nobody marks lie on this mesh, a copy on each chip, in all threads.

    From the call on; as a context to the end of the block, after which it is what it was before. What is on
    the mesh then stays there. `None`: on the device's first chip.

        with use_mesh(Mesh((8,), ("data",))):
            train()
    """

    def __init__(self, mesh: AnyMesh | None) -> None:
        self._before = default_mesh.use(None if mesh is None else as_mesh(mesh).root)

    def __enter__(self) -> use_mesh:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        default_mesh.use(self._before)


def current_mesh() -> Mesh | None:
    """The mesh of the last `use_mesh`, or None."""
    return default_mesh.in_use()
