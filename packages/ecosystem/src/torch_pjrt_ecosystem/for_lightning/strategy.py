"""The strategy `pjrt`: one process, one device. It refuses to be one of several that train alone."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from torch_pjrt.errors import UnsupportedError
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
            _check_alone()
            super().__init__(device=the_device(), **kwargs)

    return PjrtStrategy


def _check_alone() -> None:
    n_processes = os.environ.get("WORLD_SIZE") or "1"
    if n_processes != "1":
        raise UnsupportedError(
            "Lightning's strategy `pjrt` is one process: each would train a model of its own.",
            saw=f"WORLD_SIZE={n_processes}",
            expected="one process",
            hint="leave out the strategy, or give `pjrt_ddp` or `pjrt_fsdp` (docs/ecosystem.md)",
        )
