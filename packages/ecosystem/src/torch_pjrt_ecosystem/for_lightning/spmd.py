"""The strategy `pjrt_spmd`: one process, whose chips share each batch.

The model is one for all chips, a copy on each, unless its tensors are marked (`torch_pjrt_spmd`), or
sharded by `torch_pjrt_fsdp.fully_shard`, in `configure_model` say.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_pjrt.errors import UnsupportedError
from torch_pjrt_ecosystem.for_lightning.trees import registered as strategy_of
from torch_pjrt_ecosystem.for_lightning.trees import registry_of, root_of


def install(strategies: ModuleType) -> None:
    """`strategies` is a module of that name, in whose registry the strategy `pjrt` is already."""
    registry = registry_of(strategies, "strategy")
    if "pjrt_spmd" not in registry:
        made = _made(strategy_of(root_of(strategies), "strategies"))
        registry.register("pjrt_spmd", made, description="The chips of one process share batches")


def _made(base: Any) -> type:
    class PjrtSpmdStrategy(base):
        """The strategy `pjrt`, with batches in parts.

        mesh    a `torch_pjrt_spmd.Mesh`; all chips in one row unless given.
        axis    the axis, or the tuple of axes, over which the first dim of a batch lies: the mesh's first.
        """

        strategy_name = "pjrt_spmd"

        def __init__(self, mesh: Any = None, axis: Any = None, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self._mesh, self._axis, self._is_in_use = mesh, axis, False

        @property
        def mesh(self) -> Any:
            """What tensors lie on from the first call on."""
            if not self._is_in_use:
                spmd = _spmd()
                self._mesh = self._mesh or spmd.Mesh((_n_chips(),), ("data",))
                spmd.use_mesh(self._mesh)
                self._is_in_use = True
            return self._mesh

        def setup_environment(self) -> None:
            """Before a module is made or moved: what nobody marks has a copy on each chip."""
            _ = self.mesh
            super().setup_environment()

        def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            """Tensors of the host go to the chips, each its rows; what they cannot divide goes whole."""
            mesh = self.mesh
            axis = self._axis if self._axis is not None else mesh.axis_names[0]
            axes = (axis,) if isinstance(axis, str) else tuple(axis)
            parts = 1
            for name in axes:
                parts *= mesh.shape[mesh.axis_names.index(name)]

            def spread(x: Any) -> Any:
                is_whole = not isinstance(x, torch.Tensor) or x.device.type != "cpu"
                if is_whole or not x.ndim or len(x) % parts:
                    return x
                return _spmd().distribute_tensor(x, mesh, (axes,))

            leaves, structure = pytree.tree_flatten(batch)
            spread_out = pytree.tree_unflatten([spread(x) for x in leaves], structure)
            return super().batch_to_device(spread_out, *args, **kwargs)

    return PjrtSpmdStrategy


def _spmd() -> Any:
    try:
        import torch_pjrt_spmd
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "Lightning's strategy `pjrt_spmd` spreads tensors by torch-pjrt-spmd, which is not installed.",
            hint='`pip install "torch-pjrt-ecosystem[processes]"`',
        ) from error
    return torch_pjrt_spmd


def _n_chips() -> int:
    from torch_pjrt.extend import client

    return len(client().chips)
