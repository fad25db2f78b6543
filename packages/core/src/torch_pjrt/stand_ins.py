"""Functions of PyTorch that answer otherwise for a while, on one thread; on others they are as always.

To replace a function and to put it back is not safe beside other threads: they meet the replacement, and of
two that do so at once the second puts the first one's replacement back for good.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


class _Here(threading.local):
    depth = 0


class StandIn:
    """Has PyTorch call `instead` in the place of a function, on threads that are within `in_force()`.

        >>> no_hint = StandIn(
        ...     torch._meta_registrations, "device_hint", lambda original, tensor: "cpu"
        ... )
        >>> with no_hint.in_force():
        ...     torch._meta_registrations.device_hint(torch.ones(1, device="pjrt"))
        'cpu'

    owner    the module or class that has the function; None for one that this PyTorch lacks: nothing happens.
    name     the function's, of a class that of a static method. Nothing happens where `owner` has none.
    instead  is called with the function itself, then with what the function is called with. What it calls
             is not replaced.

    From the first `in_force()` on, the function is one that asks on which thread it is.
    """

    def __init__(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        self._owner = owner
        self._name = name
        self._instead = instead
        self._here = _Here()
        self._asks: Any = None
        self._putting = threading.RLock()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """On this thread, until the block ends. Blocks may lie within each other."""
        if hasattr(self._owner, self._name):
            self._put()
        self._here.depth += 1
        try:
            yield
        finally:
            self._here.depth -= 1

    def _put(self) -> None:
        """Again where somebody else has put another function there since."""
        with self._putting:
            found = getattr(self._owner, self._name)
            if found is not self._asks:
                self._asks = self._asking(found)
                is_class = isinstance(self._owner, type)
                setattr(
                    self._owner, self._name, staticmethod(self._asks) if is_class else self._asks
                )

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        here, instead = self._here, self._instead

        @wraps(original)
        def asking(*args: Any, **kwargs: Any) -> Any:
            if not here.depth:
                return original(*args, **kwargs)
            depth, here.depth = here.depth, 0
            try:
                return instead(original, *args, **kwargs)
            finally:
                here.depth = depth

        return asking
