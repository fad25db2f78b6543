"""The door before the Python handlers of signals: where one must not be called, it waits.

CPython calls a handler between two instructions of the main thread, and in some functions in C: `str()` is
one, which PyTorch calls as it asks our device guard, in code that must not throw. So each handler stands
behind a `_Door`, which notes the signal where `waits` says so. The handler is called once CPython is between
two instructions again. Who asks for a handler or sets one, in whatever way, does not see the doors.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from itertools import starmap
from types import CodeType, FrameType
from typing import Any

from torch_pjrt.session import session

# What the module `signal` calls, and those who have taken their functions from it.
_signal: Any = import_module("_signal")
_set, _get = _signal.signal, _signal.getsignal
_DOORS = "doors before handlers of signals"


class Waits:
    """What has handlers wait, on the main thread.

    n       how many blocks that want so are running.
    codes   functions in whose frames none is called.
    came    signals whose handlers wait.
    """

    __slots__ = ("came", "codes", "n")

    def __init__(self) -> None:
        self.n = 0
        self.codes: set[CodeType] = set()
        self.came: dict[int, None] = {}

    def after_fork(self) -> None:
        """Blocks of the thread that was the main one do not go on in the child."""
        self.n = 0


def _nowhere() -> Any:
    """Nothing that records is imported."""


# Tells how far the main thread has recorded: `graph/tape.py` puts a function here.
position: Callable[[], Any] = _nowhere


class Handled:
    """What handlers do: who observes a step tells that apart from what the step does.

    running     how many are being called, one within the other.
    n_recorded  how many have recorded operators, or had a tape run.
    """

    __slots__ = ("n_recorded", "running")

    def __init__(self) -> None:
        self.running = self.n_recorded = 0

    def end(self, before: Any) -> None:
        """One has ended, which began where `position` said `before`."""
        self.running -= 1
        if position() != before:
            self.n_recorded += 1


handled = session.own("what handlers of signals do", Handled())
waits = session.own("what handlers of signals wait for", Waits())
came = waits.came


class _Door:
    """What CPython calls in the place of a handler."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if waits.n:
            came[number] = None
            return None
        if frame is not None and frame.f_code in waits.codes:
            came[number] = None
            [*starmap(deliver_soon, ONCE)]  # pyright: ignore[reportUnusedExpression]
            return None
        before = position()
        handled.running += 1
        try:
            return self.handler(number, frame)
        finally:
            handled.end(before)


class _Delivery:
    """Asked for its truth by CPython, between two instructions: calls the handlers that have waited."""

    __slots__ = ()

    def __bool__(self) -> bool:
        if waits.n:
            return False  # who ends the wait asks again
        try:
            while came and sys._getframe(1).f_code not in waits.codes:
                [number, *_] = came
                handler = getsignal(number)
                frame = sys._getframe(1)
                before = position()
                del came[number]  # and then it is called: between, nothing can raise
                if callable(handler):
                    handled.running += 1
                    try:
                        handler(number, frame)
                    finally:
                        handled.end(before)
        finally:
            if came:
                [*starmap(deliver_soon, ONCE)]  # pyright: ignore[reportUnusedExpression]
        return False


_delivery = _Delivery()
# `[*starmap(deliver_soon, ONCE)]` has the handlers that wait called soon. Taking what a `starmap` gives is
# one instruction, after which CPython does not look for signals.
deliver_soon = ctypes.pythonapi.Py_AddPendingCall
ONCE = (
    (
        ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p),
        ctypes.py_object(_delivery),
    ),
)


def getsignal(number: int) -> Any:
    """As CPython's: the handler, without its door."""
    return _without_door(_get(number))


def _set_signal(number: int, handler: Any) -> Any:
    """As CPython's, with a door before a handler in Python."""
    return _without_door(_set(number, _Door(handler) if callable(handler) else handler))


def _without_door(handler: Any) -> Any:
    return handler.handler if handler.__class__ is _Door else handler


def install() -> None:
    """Put doors before all handlers, those of the future too. Off the main thread it does nothing."""
    if _DOORS in session.done or threading.get_ident() != threading.main_thread().ident:
        return
    for number in _signal.valid_signals():
        handler = _get(number)
        if callable(handler) and handler.__class__ is not _Door:
            _set(number, _Door(handler))
    # JAX has one. What is raised there is printed and forgotten.
    waits.codes.update(c.__code__ for c in gc.callbacks if hasattr(c, "__code__"))
    _signal.signal, _signal.getsignal = _set_signal, getsignal
    session.once(_DOORS)  # at the end: what is cut short is done again
