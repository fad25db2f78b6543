"""What modules offer and import only when it is asked for, by a `__getattr__` of their own.

To Python an `AttributeError` from there says that there is no such name, whatever raised it. So none leaves.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch_pjrt.errors import BrokenModule


def attribute(module: str, name: str) -> Any:
    """`name` of `module`, which is imported now if it has not been. Raises `BrokenModule` where it fails.

    >>> lazy_attribute("math", "pi")
    3.141592653589793
    """
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        raise BrokenModule(
            f"`{module}` cannot be imported.",
            saw=f"AttributeError: {error}",
            hint="the error above this one says where",
        ) from error
