"""What the device is asked to watch for: errors that only the values of a tensor decide.

A program that watches has one more result, two integers: which of its watches has found something (from
1 on; 0 for none), and what. They are looked at when the host waits for the device anyway, and after each
launch if they have come in. So the error is raised later than the call that is at fault, but before any
value is read that was computed after it; no value is lost by it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from torch_pjrt.graph.signature import InternalOp
from torch_pjrt.graph.tape import Value
from torch_pjrt.run.wait import awaited

OUTSIDE = InternalOp("pjrt.outside")
Refusal = Callable[[int], Exception]


class Watch:
    """The watches of one tape.

    value     what the program will have found.
    refusals  the i-th makes the error from what the watch `i + 1` found.
    seen      what is watched, so that it is not watched twice.
    thread    who recorded it, and is told.
    """

    __slots__ = ("refusals", "seen", "thread", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.refusals: list[Refusal] = []
        self.seen: set[Any] = set()
        self.thread = threading.get_ident()


_watches: list[Watch] = []


def watched(value: Value) -> Watch:
    """A new watch that is looked at from now on; `value` is what the program will have found."""
    watch = Watch(value)
    _watches.append(watch)
    return watch


def forget(watch: Watch) -> None:
    """Do not look at it: somebody else does."""
    _watches.remove(watch)


def pending() -> list[Watch]:
    """The watches that nobody has looked at yet."""
    return list(_watches)


def look(*, wait: bool = False, for_value: Value | None = None) -> None:
    """Raise what was found for this thread, if it has come in; with `wait`, wait for it.

    What may have been found before `for_value` was computed, or with it, is waited for, too: a program's
    results come in one after another.
    """
    if not _watches:
        return
    of_value = for_value.tape.serial if for_value is not None and for_value.tape is not None else -1
    thread = threading.get_ident()
    for watch in [w for w in _watches if w.thread == thread]:
        array = watch.value.array
        tape = watch.value.tape
        if array is None:
            if tape is None or tape.failure is not None:  # its program failed
                with suppress(ValueError):
                    _watches.remove(watch)
            continue
        is_before = tape is not None and tape.serial <= of_value
        if not (wait or is_before or array.is_ready()):  # type: ignore[attr-defined]
            continue
        with suppress(ValueError):  # who looked meanwhile has removed it
            _watches.remove(watch)
        which, found = np.asarray(awaited(array, "watching for errors")).tolist()
        if which:
            raise watch.refusals[which - 1](found)
