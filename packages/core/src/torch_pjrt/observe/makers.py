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
from torch_pjrt.observe.lines import user_line

if TYPE_CHECKING:
    import jax

_makers: WeakKeyDictionary[Value, str] = WeakKeyDictionary()


def install() -> None:
    """Note the line of every value made from now on."""
    original = Value.__init__
    if getattr(original, "notes_makers", False):
        return

    @wraps(original)
    def __init__(self: Value, *args: Any) -> None:
        original(self, *args)
        line = user_line(sys._getframe(1))
        _makers[self] = str(line) if line is not None else "?"

    __init__.notes_makers = True  # type: ignore[attr-defined]
    Value.__init__ = __init__


def made() -> list[tuple[jax.Array, str]]:
    """The arrays held by values whose lines were noted, with `file:line`."""
    from torch_pjrt.run.rows import whole

    noted = list(_makers.items())
    return [(whole(value.array), line) for value, line in noted if value.array is not None]
