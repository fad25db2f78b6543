"""The line of the user's program that made each value, noted while memory is traced.

Off, which is the default, it costs nothing: it is turned on once, when the device starts, by putting
another `__init__` into `Value`.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch_pjrt.graph.tape import Value

if TYPE_CHECKING:
    import jax

# Modules whose frames are not the user's. Kernels that were written out belong to no module.
_NOT_USERS = frozenset((None, "torch", "torch_pjrt", "jax", "contextlib", "functools"))

_makers: WeakKeyDictionary[Value, str] = WeakKeyDictionary()


def install() -> None:
    """Note the line of every value made from now on."""
    original = Value.__init__
    if getattr(original, "notes_makers", False):
        return

    @wraps(original)
    def __init__(self: Value, *args: Any) -> None:
        original(self, *args)
        _makers[self] = users_line()

    __init__.notes_makers = True  # type: ignore[attr-defined]
    Value.__init__ = __init__


def made() -> list[tuple[jax.Array, str]]:
    """The arrays held by values whose lines were noted, with `file:line`."""
    noted = list(_makers.items())
    return [(value.array, line) for value, line in noted if value.array is not None]


def users_line() -> str:
    """`file:line` of the innermost frame that is neither PyTorch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if (module and module.partition(".")[0]) not in _NOT_USERS:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
