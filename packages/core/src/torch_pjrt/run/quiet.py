"""Quiet: while a block runs, no foreign Python runs within it on this thread.

Signals whose handlers are Python functions are noted, and their handlers called when the block ends; garbage
is collected after it, with the finalizers that it may have. A handler may raise (Ctrl-C does), a finalizer
may read a tensor: in the middle of JAX's tracing, or between a launch that takes the memory of parameters and
the storing of what it gave, neither could be survived.

It costs some microseconds, and so is for what is done once (making programs, first launches) and backward.
"""

from __future__ import annotations

import gc
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = sorted(signal.valid_signals())

_blocks = 0  # that run now, on all threads
_collects = False  # whether garbage was collected before the first of them
_depth = 0  # of blocks on the main thread: only there do handlers run
_held: dict[int, Any] = {}  # the handlers that are replaced
_came: list[tuple[int, FrameType | None]] = []


class quiet:
    """A context manager, see above. May be nested."""

    __slots__ = ("_is_main",)

    def __enter__(self) -> None:
        global _blocks, _collects, _depth
        self._is_main = threading.get_ident() == threading.main_thread().ident
        if not _blocks:
            _collects = gc.isenabled()
        _blocks += 1
        try:
            gc.disable()
            if self._is_main:
                _depth += 1
                if _depth == 1:
                    _hold()
        except BaseException:  # a handler that was not replaced yet
            self._leave()
            raise

    def __exit__(self, *error: Any) -> None:
        self._leave()
        if self._is_main and not _depth:
            _call_those_that_came()

    def _leave(self) -> None:
        global _blocks, _depth
        _blocks -= 1
        if self._is_main:
            _depth -= 1
        if not _blocks and _collects:
            gc.enable()
        if self._is_main and not _depth:
            _release()


def _hold() -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not _note:
            _held[number] = handler
            signal.signal(number, _note)


def _release() -> None:
    """Put the handlers back. One that is back may be called at once, and raise: the rest follows first."""
    raised: BaseException | None = None
    while _held:
        try:
            for number in list(_held):
                signal.signal(number, _held[number])
                del _held[number]
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised


def _note(number: int, frame: FrameType | None) -> None:
    """What is called in a handler's place."""
    handler = _held.get(number)
    if _depth or handler is None:
        _came.append((number, frame))
    else:  # an interrupt has cut `_release` short
        _release()
        handler(number, frame)


def _call_those_that_came() -> None:
    raised: BaseException | None = None
    while _came:
        number, frame = _came.pop(0)
        handler = signal.getsignal(number)
        try:
            if callable(handler):
                handler(number, frame)
        except BaseException as error:
            raised = raised or error
    if raised is not None:
        raise raised
