"""Names and modules that are not here at once: those that mean nothing here, and modules of a package.

Asking for a name that means nothing here raises, and says what to use instead. A module says them as a table,
and makes its `__getattr__` of it:

    __getattr__ = absent(__name__, {"check_view_sharing": "views are exact here: nothing is to be checked"})

A package has its modules as attributes before anybody imports them: after `import torch_xla` scripts write
`torch_xla.experimental.eager_mode`. Modules of torch_xla that are not here are rows of `elsewhere.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from torch_pjrt.errors import UnsupportedError
from torch_xla.elsewhere import ELSEWHERE


class AbsentName(UnsupportedError, ImportError):
    """A name of torch_xla that means nothing here. It is an `ImportError`, so that libraries which try an
    import, and do something else where it fails, do that."""


class AbsentModule(AbsentName, ModuleNotFoundError):
    """A module of torch_xla that is not here."""


def absent(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module: `AbsentName` for `names`, each with its hint; a module of that package,
    or `AbsentModule` for one that torch_xla has; else `AttributeError`.

    The first is no `AttributeError`, which `from torch_xla.x import name` would hide behind "cannot import".
    """

    def find(name: str) -> Any:
        if name in names:
            raise AbsentName(f"`{module}.{name}` does not exist on torch-pjrt.", hint=names[name])
        if _is_module(f"{module}.{name}"):
            return importlib.import_module(f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def modules_of(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that has all its names: its modules."""
    return absent(package, {})


def _is_module(name: str) -> bool:
    """Whether to import it: it is there, or it is one of which `elsewhere.py` says what there is instead."""
    try:
        return not name.rpartition(".")[2].startswith("__") and (
            name.removeprefix("torch_xla.") in ELSEWHERE
            or importlib.util.find_spec(name) is not None
        )
    except ModuleNotFoundError:  # its parent is no package
        return False
