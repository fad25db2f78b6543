"""Quiet: while a block runs, no foreign Python runs within it on this thread.

Signals whose handlers are Python functions are noted, and their handlers called when the block ends
(`interrupts/signals.py`); garbage is collected after it, with the finalizers that it may have. A handler may
raise (Ctrl-C does), a finalizer may read a tensor: in the middle of JAX's tracing, or between a launch that
takes the memory of parameters and the storing of what it gave, neither could be survived.

It costs a microsecond, and so is for what is done once (making programs, first launches) and backward.

An exception that another thread has raised here (`PyThreadState_SetAsyncExc`) does not wait: Python looks for
one after each call, and at the start of each function. So what is changed and the note of it are written with
no call between them, and a block whose end was cut short ends when its object goes.
"""

from __future__ import annotations

import gc
import threading
from itertools import starmap
from typing import Any, ClassVar

from torch_pjrt.interrupts.signals import ONCE, came, deliver_soon, install, waits
from torch_pjrt.session import session


class _Blocks:
    """How many run now, on all threads; whether garbage was collected before the first of them."""

    __slots__ = ("collects", "n")

    def __init__(self) -> None:
        self.n = 0
        self.collects = False

    def after_fork(self) -> None:
        """Blocks of other threads do not go on in the child, and nobody forks within one."""
        if self.n and self.collects:
            gc.enable()
        self.n = 0


_blocks = session.own("blocks in which no foreign Python runs", _Blocks())
_main = threading.main_thread().ident


class _Ended:
    """A `quiet` that has ended. Nothing runs when it goes: what a handler raised there would be lost."""

    __slots__ = ("_is_counted", "_waits")

    def __init__(self) -> None:
        self._is_counted = self._waits = False


class quiet(_Ended):
    """A context manager, see above. May be nested."""

    __slots__ = ()
    _waits_for_handlers: ClassVar[bool] = True

    def __enter__(self) -> None:
        if self._waits_for_handlers and threading.get_ident() == _main:
            install()
            waits.n += 1
            self._waits = True
        if not _blocks.n:
            _blocks.collects = gc.isenabled()
        _blocks.n += 1
        self._is_counted = True
        gc.disable()

    def __exit__(self, *error: Any) -> None:
        self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._is_counted:
            self._is_counted = False
            _blocks.n -= _blocks.n > 0
            if not _blocks.n and _blocks.collects:
                gc.enable()
        if self._waits:
            soon = starmap(deliver_soon, ONCE)
            self._waits = False
            # From here on a handler may be called, but for the end nothing can.
            waits.n -= waits.n > 0
            self.__class__ = _Ended  # pyright: ignore[reportAttributeAccessIssue]
            if came:
                _ = [*soon]
        else:
            self.__class__ = _Ended  # pyright: ignore[reportAttributeAccessIssue]


class uncollected(quiet):
    """A context manager: garbage is collected after it, and handlers are called as ever. For imports.

    Those leave little garbage and many objects, and Python looks at all that are there time and again. At the
    end all objects count as old, and Python's next look is at those that come then: at half a million young
    ones it takes 60 ms. What the user has frozen stays frozen, and then so many count as young.
    """

    __slots__ = ()
    _waits_for_handlers = False

    def __exit__(self, *error: Any) -> None:
        if _blocks.n == 1 and not gc.get_freeze_count():
            gc.freeze()  # moves the lists of objects, and looks at none
            gc.unfreeze()
        super().__exit__(*error)
