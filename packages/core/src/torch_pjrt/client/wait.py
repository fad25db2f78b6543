"""Waiting for the device: everything that was launched, done."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax

from torch_pjrt.client import memory
from torch_pjrt.session import session

_last: list[weakref.ref[jax.Array]] = session.own("results of the last launch", [])


def remember(results: Sequence[jax.Array]) -> None:
    """Called with the results of each launch. Holds them weakly: a reference would prevent their donation.

    The first and the last are enough, since a program's results are done together and programs run in order.
    """
    _last[:] = [weakref.ref(results[0]), weakref.ref(results[-1])]


def wait() -> None:
    """Return when the last program launched has finished; raises what it failed with."""
    for reference in list(_last):
        array = reference()
        if array is not None and not array.is_deleted():
            awaited(array, "running a program")


def awaited(array: Any, doing: str) -> Any:
    """The array, when its content is there; raises what its program failed with. `doing` is for the error.

    To be asked before anything looks at an array's memory (`client/failed.py`).
    """
    try:
        array.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        memory.raise_if_exhausted(error, doing)
        raise
    return array
