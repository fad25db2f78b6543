"""The strategy `pjrt_spmd`: one process, whose chips share each batch.

The model is one for all chips, a copy on each, unless its tensors are marked (`torch_pjrt_spmd`), or
sharded by `torch_pjrt_fsdp.fully_shard`, in `configure_model` say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_pjrt.errors import UnsupportedError
from torch_pjrt_ecosystem.for_lightning.trees import is_fabric, registry_of, root_of
from torch_pjrt_ecosystem.for_lightning.trees import registered as strategy_of


def install(strategies: ModuleType) -> None:
    """`strategies` is a module of that name, in whose registry the strategy `pjrt` is already."""
    registry = registry_of(strategies, "strategy")
    if "pjrt_spmd" not in registry:
        base = strategy_of(root_of(strategies), "strategies")
        made = _made(base, is_fabric(strategies))
        registry.register("pjrt_spmd", made, description="The chips of one process share batches")


class _Spread:
    """A loader, with what it gives spread over the chips."""

    def __init__(self, loader: Any, spread: Callable[[Any], Any]) -> None:
        self.loader, self.spread = loader, spread

    def __iter__(self) -> Iterator[Any]:
        return map(self.spread, self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)


def _made(base: Any, is_of_fabric: bool) -> type:
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
            """`Trainer`'s way."""
            return super().batch_to_device(self._spread(batch), *args, **kwargs)

        def process_dataloader(self, dataloader: Any) -> Any:
            """Fabric's way: it moves what its loaders give by itself. `Trainer`'s batches come later."""
            loader = super().process_dataloader(dataloader)
            return _Spread(loader, self._spread) if is_of_fabric else loader

        def _spread(self, batch: Any) -> Any:
            """Tensors of the host go to the chips, each its rows; what they cannot divide stays."""
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

            return pytree.tree_map(spread, batch)

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
