"""The strategy `pjrt`: one process, one device."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch_pjrt_ecosystem.at_hand import device as the_device
from torch_pjrt_ecosystem.for_lightning.trees import registry_of


def install(strategies: ModuleType) -> None:
    """`strategies` is a module of that name, which has the registry and the base class."""
    registry = registry_of(strategies, "strategy")
    if "pjrt" not in registry:
        made = _made(strategies.SingleDeviceStrategy)
        registry.register("pjrt", made, description="One process on the device of torch-pjrt")


def _made(base: Any) -> type:
    class PjrtStrategy(base):
        """Lightning's strategy for a single device, on ours; its arguments but `device`."""

        strategy_name = "pjrt"

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(device=the_device(), **kwargs)

    return PjrtStrategy
