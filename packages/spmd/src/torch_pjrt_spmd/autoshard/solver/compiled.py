"""`compiled`: a function over arrays as machine code, by numba; without numba it is Python, and slow."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

IS_FAST = find_spec("numba") is not None


def compiled(function: Function) -> Function:
    """Compiled at its first call, without Python's lock while it runs, kept on disk where it can be."""
    if not IS_FAST:
        return function
    njit: Any = import_module("numba").njit
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder that can be written to
        return njit(nogil=True)(function)
