"""The session: what this process has once. The started device, its programs, caches, counters, switches.

A module that keeps something has it owned by the session, and says in words what it is:

    class Stops:
        def __init__(self) -> None:
            self.by_line: dict[Line, Stop] = {}

        def forget(self) -> None:
            self.by_line.clear()

    _stops = session.own("where the program stopped for the device", Stops())

What is owned is changed in place and never replaced, so a module may hold it, or a container of it, by a
name of its own: recording a call of an operator asks the session for nothing. Who wants to do something with
all of it (a forked process, a test that begins anew, the report) asks the session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Session:
    """All that a process has once, by what it is, in the order in which modules were imported.

    owned    what modules keep.
    caches   the caches that are alive (`caches.py`).
    done     what is done once in a process and was done, in words.
    """

    def __init__(self) -> None:
        self.owned: dict[str, Any] = {}
        self.caches: WeakSet[Any] = WeakSet()
        self.done: set[str] = set()

    def own(self, what: str, thing: T) -> T:
        """`thing`, which is the session's from now on. It may have the methods `forget` and `after_fork`.

        Where a module is loaded again, what it owned before, as it is.
        """
        before = self.owned.get(what)
        if before is not None:
            assert type(before).__qualname__ == type(thing).__qualname__, what
            return before
        self.owned[what] = thing
        return thing

    def once(self, what: str) -> bool:
        """Whether it is to be done now: True the first time that it is asked."""
        if what in self.done:
            return False
        self.done.add(what)
        return True

    def forget(self) -> None:
        """Begin anew: no program is known, nothing is counted. The device goes on; tensors are as they were.

        For tests and benchmarks, between two runs that are to be alike. What is pending is not run; caches
        keep what they have, since nothing but time depends on it.
        """
        for thing in self._with("forget"):
            thing.forget()

    def after_fork(self) -> None:
        """In a child process: what belongs to threads that are not there is made anew."""
        for thing in self._with("after_fork"):
            thing.after_fork()

    def _with(self, method: str) -> Iterator[Any]:
        return (thing for thing in list(self.owned.values()) if hasattr(thing, method))


session = Session()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=session.after_fork)
