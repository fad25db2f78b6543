"""Waiting for the device: everything that was launched, done."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import jax

from torch_pjrt.run import memory

_last: list[weakref.ref[jax.Array]] = []


def remember(results: Sequence[jax.Array]) -> None:
    """Called with the results of each launch. Holds them weakly: a reference would prevent their donation.

    The first and the last are enough, since a program's results are done together and programs run in order.
    """
    _last[:] = [weakref.ref(results[0]), weakref.ref(results[-1])]


def wait() -> None:
    """Return when the last program launched has finished; raises what it failed with."""
    for reference in _last:
        array = reference()
        if array is not None and not array.is_deleted():
            try:
                array.block_until_ready()
            except jax.errors.JaxRuntimeError as error:
                memory.raise_if_exhausted(error, "running a program")
                raise
