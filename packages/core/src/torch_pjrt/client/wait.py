"""Waiting for the device: everything that was launched, done."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
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


class Launched:
    """What had been launched at some moment: the results of the last program before it, held weakly.

    Where these are gone, who took their memory was launched later, or nobody is left to ask for them.
    """

    def __init__(self) -> None:
        self._results = tuple(_last)

    def _there(self) -> Iterator[Any]:  # arrays, of whose methods JAX's stub leaves out `is_ready`
        for reference in self._results:
            array = reference()
            if array is not None and not array.is_deleted():
                yield array

    def wait(self) -> None:
        """Return when it has finished; raises what it failed with."""
        for array in self._there():
            awaited(array, "running a program")

    def is_done(self) -> bool:
        """Whether it has finished, or failed."""
        return all(array.is_ready() for array in self._there())


def launched() -> Launched:
    """What has been launched so far."""
    return Launched()


def wait() -> None:
    """Return when the last program launched has finished; raises what it failed with."""
    launched().wait()


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
