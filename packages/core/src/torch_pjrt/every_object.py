"""All objects of a class, found as garbage collection finds who refers to it."""

from __future__ import annotations

import gc
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


def every(kind: type[T]) -> list[T]:
    """The objects of this class, or of one derived from it, that are there now.

    Not by a list of all objects, `gc.get_objects()`: Python resizes a tuple that another thread is building,
    and raises `SystemError` there if such a list holds it. Objects refer to their class, which is how they
    are found, and nothing else is held.

    What `gc.freeze()` has hidden from such a search is looked at by collections again.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    kinds = _derived(kind)
    return [x for x in gc.get_referrers(*kinds) if type(x) in kinds]


def _derived(kind: type[Any]) -> set[type[Any]]:
    found = {kind}
    for derived in type.__subclasses__(kind):
        found |= _derived(derived)
    return found


class Living(Generic[T]):
    """The objects of a class that notes each new one here, once somebody has asked for all.

    To find them as `every` does takes as long as the process has objects: 50 ms beside PyTorch, JAX and
    Transformers. That is done for the first who asks.

    is_noting    whether a new object is to be noted.

        >>> class Leaf:
        ...     def __init__(self):
        ...         if leaves.is_noting:
        ...             leaves.note(self)
        >>> leaves = Living(Leaf)
        >>> first = Leaf()
        >>> len(leaves.all())
        1
        >>> second = Leaf()
        >>> len(leaves.all())
        2
    """

    __slots__ = ("_is_whole", "_kind", "_noted", "is_noting")

    def __init__(self, kind: type[T]) -> None:
        self.is_noting = False
        self._kind = kind
        self._is_whole = False
        self._noted: set[ref[T]] = set()

    def note(self, x: T) -> None:
        """It is there, until it goes."""
        self._noted.add(ref(x, self._noted.discard))

    def all(self) -> list[T]:
        """Those that are there now."""
        if not self._is_whole:
            self.is_noting = True  # first: what is made from here on need not be found
            for x in every(self._kind):
                self.note(x)
            self._is_whole = True
        return [x for reference in [*self._noted] if (x := reference()) is not None]
