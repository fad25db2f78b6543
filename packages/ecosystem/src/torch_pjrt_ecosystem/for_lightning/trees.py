"""Lightning's two trees of modules, `lightning.pytorch` and `pytorch_lightning`, each with its Fabric."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

_PYTORCH = ("lightning.pytorch", "pytorch_lightning")
_FABRIC = ("lightning.fabric", "lightning_fabric")


def root_of(module: ModuleType) -> str:
    """Which of the four the module is in."""
    return next(r for r in (*_PYTORCH, *_FABRIC) if f"{module.__name__}.".startswith(f"{r}."))


def is_fabric(module: ModuleType) -> bool:
    """Whether it is one of Fabric's modules, not of the Trainer's."""
    return root_of(module) in _FABRIC


def misconfigured(root: str) -> type[Exception]:
    """What this tree raises for arguments that do not fit together."""
    fabric = _FABRIC[(_PYTORCH if root in _PYTORCH else _FABRIC).index(root)]
    return import_module(f"{fabric}.utilities.exceptions").MisconfigurationException


def registered(root: str, kind: str) -> Any:
    """The class `pjrt` in the registry of `accelerators` or `strategies` of this tree."""
    module = import_module(f"{root}.{kind}")
    name = "strategy" if kind == "strategies" else "accelerator"
    return registry_of(module, name)["pjrt"][name]


def registry_of(module: ModuleType, name: str) -> Any:
    """The registry of accelerators, or of strategies, that the module holds: Fabric spells it in capitals."""
    if is_fabric(module):
        return getattr(module, f"{name.upper()}_REGISTRY")
    return getattr(module, f"{name.capitalize()}Registry")
