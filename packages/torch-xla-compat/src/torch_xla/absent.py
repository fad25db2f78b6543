"""Names of `torch_xla` that mean nothing here: asking for one raises, and says what to use instead.

A module says them as a table and makes its `__getattr__` of it:

    __getattr__ = absent(__name__, {"check_view_sharing": "views are exact here: nothing is to be checked"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch_pjrt.errors import UnsupportedError


def absent(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module: `UnsupportedError` for `names`, each with its hint; else
    `AttributeError`.

    The error is no `AttributeError`, which `from torch_xla.x import name` would hide behind "cannot import".
    """

    def find(name: str) -> Any:
        if name in names:
            raise UnsupportedError(
                f"`{module}.{name}` does not exist on torch-pjrt.", hint=names[name]
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
