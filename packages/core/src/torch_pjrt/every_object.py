"""All objects of a class, found as garbage collection finds who refers to it."""

from __future__ import annotations

import gc
from typing import Any, TypeVar

T = TypeVar("T")


def every(kind: type[T]) -> list[T]:
    """The objects of this class, or of one derived from it, that are there now.

    Not by a list of all objects, `gc.get_objects()`: Python resizes a tuple that another thread is building,
    and raises `SystemError` there if such a list holds it. Objects refer to their class, which is how they
    are found, and nothing else is held.
    """
    kinds = _derived(kind)
    return [x for x in gc.get_referrers(*kinds) if type(x) in kinds]


def _derived(kind: type[Any]) -> set[type[Any]]:
    found = {kind}
    for derived in type.__subclasses__(kind):
        found |= _derived(derived)
    return found
