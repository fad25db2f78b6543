"""Keeping Dynamo out of our code: `torch.compile` traces the user's program, whatever its backend.

A kernel of ours is Python that PyTorch's C++ calls while a compiled function runs, so Dynamo would take it,
and JAX below it, for a program to be compiled. It is told better when it is imported, and not
imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_RULES = "torch._dynamo.trace_rules"
_packages = ["torch_pjrt", "jax", "jaxlib"]
_told: set[str] = set()


def install() -> None:
    """Tell Dynamo now, or when it is imported. Does nothing the second time."""
    rules = sys.modules.get(_RULES)
    if rules is not None:
        _tell(rules)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def keep_out(packages: Iterable[str]) -> None:
    """Let Dynamo trace nothing in these packages either."""
    _packages.extend(sorted(set(packages).difference(_packages)))
    install()


def _tell(rules: Any) -> None:
    add = getattr(rules, "add", None)
    if add is None:  # another PyTorch
        return
    for package in _packages:
        if package not in _told:
            _told.add(package)
            add(package)


class _Watch(MetaPathFinder):
    """Sees the import of Dynamo's rules, and is gone then."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _RULES:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenTell(spec.loader)
        return spec


class _ThenTell(Loader):
    """Loads as another loader does, and leaves no trace of itself."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _tell(module)
