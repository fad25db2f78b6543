"""Core asks this package from the first mesh of the process on: meshes say when, and the package says how."""

from __future__ import annotations

from collections.abc import Callable

_done_by: list[Callable[[], None]] = []


def is_done_by(take_over: Callable[[], None]) -> None:
    """Say what has core ask this package; it may be called any number of times."""
    _done_by[:] = [take_over]


def take_over() -> None:
    """Have core ask this package, if it does not yet."""
    for do in _done_by:
        do()
