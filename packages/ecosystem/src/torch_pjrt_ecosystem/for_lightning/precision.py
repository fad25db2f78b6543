"""Mixed precision with the accelerator `pjrt`: Lightning would name the device `cuda`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch_pjrt_ecosystem.for_lightning.auto import connector_in
from torch_pjrt_ecosystem.for_lightning.trees import is_fabric, misconfigured, root_of
from torch_pjrt_ecosystem.replacing import wrap


def install(module: ModuleType) -> None:
    """`module` has the class that makes accelerator, strategy and precision of their names."""
    asked, given = (
        ("_precision_input", "_precision_instance")
        if is_fabric(module)
        else ("_precision_flag", "_precision_plugin_flag")
    )
    mixed: Any = module.MixedPrecision  # type: ignore[attr-defined]

    def check_and_make(original: Callable[..., Any], self: Any) -> Any:
        if self.accelerator.name() != "pjrt":
            return original(self)
        if getattr(self, given) is None and getattr(self, asked) in ("16-mixed", "bf16-mixed"):
            return mixed(getattr(self, asked), "pjrt")
        made = original(self)
        if isinstance(made, mixed) and made.device != "pjrt":
            raise misconfigured(root_of(module))(
                f"Mixed precision for `{made.device}` does nothing on the accelerator `pjrt`. Give "
                f'`precision="{made.precision}"`, or the plugin with `device="pjrt"`.'
            )
        return made

    wrap(connector_in(module), "_check_and_init_precision", check_and_make)
