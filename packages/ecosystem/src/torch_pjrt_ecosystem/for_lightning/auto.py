"""`"auto"`: which accelerator, and with the accelerator `pjrt`, which strategy.

For an accelerator that is registered from outside Lightning chooses a strategy on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.for_lightning.in_processes import n_processes
from torch_pjrt_ecosystem.for_lightning.trees import is_fabric, misconfigured, registered, root_of
from torch_pjrt_ecosystem.replacing import wrap

OURS = ("pjrt", "pjrt_ddp", "pjrt_fsdp", "pjrt_spmd")


def install(module: ModuleType) -> None:
    """`module` has the class that makes accelerator, strategy and precision of their names."""
    connector = connector_in(module)
    root = root_of(module)

    def choose_strategy(original: Callable[..., Any], self: Any) -> Any:
        if self.accelerator.name() != "pjrt":
            return original(self)
        if n_processes() > 1:
            return "pjrt_ddp"
        if self._num_nodes_flag > 1:
            raise misconfigured(root)(
                f"`num_nodes={self._num_nodes_flag}` with the accelerator `pjrt`: "
                "its strategy is one process, unless torchrun has started several."
            )
        return registered(root, "strategies")()

    def replace_strategy(original: Callable[..., None], self: Any) -> None:
        """ "ddp" and "fsdp" are ours with our accelerator."""
        if self.accelerator.name() == "pjrt" and self._strategy_flag in ("ddp", "fsdp"):
            self._strategy_flag = f"pjrt_{self._strategy_flag}"
        original(self)

    wrap(connector, "_choose_auto_accelerator", _choose_accelerator)
    wrap(connector, "_choose_strategy", choose_strategy)
    wrap(connector, "_check_strategy_and_fallback", replace_strategy)
    wrap(connector, "_check_config_and_set_final_flags", _set_flags)


def connector_in(module: ModuleType) -> type:
    """The class of `Trainer`'s module, or of Fabric's."""
    return module._Connector if is_fabric(module) else module._AcceleratorConnector


def _choose_accelerator(original: Callable[[], str]) -> str:
    chosen = original()
    # "tpu" is the module `torch_xla`, which may be ours: another way to the same device
    return "pjrt" if chosen != "tpu" and is_at_hand() else chosen


def _set_flags(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    is_ours = getattr(self._strategy_flag, "strategy_name", self._strategy_flag) in OURS
    if is_ours and self._accelerator_flag == "auto":
        self._accelerator_flag = "pjrt"
