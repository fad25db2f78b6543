"""Launches of programs, for whoever wants to know which ran while it looked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_pjrt.compile.programs import Program

_listeners: list[list[Program]] = []


def launched(program: Program) -> None:
    """Called at each launch."""
    program.compilation.runs += 1
    for listener in _listeners:
        listener.append(program)


@contextmanager
def launches() -> Iterator[list[Program]]:
    """The programs that are launched while the block runs, in order."""
    heard: list[Program] = []
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners[:] = [listener for listener in _listeners if listener is not heard]
