"""Modules of torch_xla that are no files here: those whose names are in another one, and those that mean
nothing.

Python asks the finder of this file where it finds no file of a module of `torch_xla`. `elsewhere.py` lists
these modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch_xla.absent import AbsentModule
from torch_xla.elsewhere import INSTEAD, SAME_AS

_PACKAGE = "torch_xla."


class _Finder:
    """Asked last, after those that look for files."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if not name.startswith(_PACKAGE):
            return None
        if name.removeprefix(_PACKAGE) in SAME_AS:
            return ModuleSpec(name, _OfAnother(), is_package=False)
        # Who only asks whether there is such a module, as `importlib.util.find_spec` does, is told no.
        if sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            return None
        raise AbsentModule(
            f"The module `{name}` does not exist on torch-pjrt.",
            hint=INSTEAD.get(
                name.removeprefix(_PACKAGE), "the page `from-torch-xla` lists those there are"
            ),
        )


class _OfAnother(Loader):
    """Loads a module that has the names of another one."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None  # an empty one

    def exec_module(self, module: ModuleType) -> None:
        name = SAME_AS[module.__name__.removeprefix(_PACKAGE)]
        other = importlib.import_module(f"{_PACKAGE}{name}".rstrip("."))
        own = {name: value for name, value in vars(other).items() if not name.startswith("__")}
        vars(module).update(own)
        module.__doc__ = f"`{other.__name__}`."
        module.__getattr__ = lambda name: getattr(other, name)  # type: ignore[method-assign]


def install() -> None:
    """Have Python ask for modules of torch_xla here, too; any number of times."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)  # type: ignore[arg-type]
