"""Checks that the device makes: errors that only the values of a tensor decide.

A program with such checks has one more result, integers: which of them has found something (from 1 on;
0 for none), and what. They are looked at when the host waits for the device anyway, and after each
launch if they have come in. So the error is raised later than the call that is at fault, but before any
value is read that was computed after it; no value is lost by it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from torch_pjrt.client.wait import awaited
from torch_pjrt.graph.tape import Value
from torch_pjrt.session import session

Refusal = Callable[..., Exception]  # made from what was found


class DeferredChecks:
    """The deferred checks of one tape.

    value     what the program will have found.
    refusals  the i-th makes the error from what the check `i + 1` found.
    seen      what is checked, so that it is not checked twice.
    thread    who recorded it, and gets the error.
    """

    __slots__ = ("refusals", "seen", "thread", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.refusals: list[Refusal] = []
        self.seen: set[Any] = set()
        self.thread = threading.get_ident()


_pending: list[DeferredChecks] = session.own("checks that nobody has looked at", [])


def deferred_checks(value: Value) -> DeferredChecks:
    """New checks that are looked at from now on; `value` is what the program will have found.

    value   three int64: which refusal makes the error, counted from 1 (0: nothing was found), and two
            numbers that it is called with.

    Add the refusals to the result's `refusals`. What they make is raised on this thread, where it waits for
    the device or launches another program.

        >>> found = value_of(torch.tensor([1, 7, 0], device="pjrt") + 0)  # by an operator
        >>> checks = deferred_checks(found)
        >>> checks.refusals.append(lambda index, size: IndexError(f"there is no row {index}"))
        >>> torch.pjrt.synchronize()
        Traceback (most recent call last):
        IndexError: there is no row 7
    """
    checks = DeferredChecks(value)
    _pending.append(checks)
    return checks


def forget(checks: DeferredChecks) -> None:
    """Do not look at them: somebody else does."""
    _pending.remove(checks)


def pending() -> list[DeferredChecks]:
    """The checks that nobody has looked at yet."""
    return list(_pending)


def look(*, wait: bool = False, for_value: Value | None = None) -> None:
    """Raise what was found for this thread, if it has come in; with `wait`, wait for it.

    What may have been found before `for_value` was computed, or with it, is waited for, too: a program's
    results come in one after another.
    """
    if not _pending:
        return
    of_value = for_value.tape.serial if for_value is not None and for_value.tape is not None else -1
    thread = threading.get_ident()
    for checks in [c for c in _pending if c.thread == thread]:
        array = checks.value.array
        tape = checks.value.tape
        if array is None:
            if tape is None or tape.failure is not None:  # its program failed
                with suppress(ValueError):
                    _pending.remove(checks)
            continue
        is_before = tape is not None and tape.serial <= of_value
        if not (wait or is_before or array.is_ready()):  # type: ignore[attr-defined]
            continue
        with suppress(ValueError):  # who looked meanwhile has removed it
            _pending.remove(checks)
        which, *found = np.asarray(awaited(array, "looking for errors")).tolist()
        if which:
            raise checks.refusals[which - 1](*found)
