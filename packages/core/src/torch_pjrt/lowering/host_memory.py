"""Arrays that lie in the host's memory, within a program: brought to the chip where something reads them.

A program's inputs may lie there, and so may its results (a sharding's `memory_kind` says so). Rules compute
on what is in the chip's memory. Each reader gets a copy of its own. Within a loop that keeps what forward has
brought from being held for backward, or for the optimizer; elsewhere a compiler may merge the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

Sharding = jax.sharding.Sharding

# By JAX's names: the memory of the host that chips read and write directly.
HOST = "pinned_host"


def lies_on_host(sharding: Sharding | None) -> bool:
    """Whether what lies like this lies in the host's memory, of a device that has its own."""
    return sharding is not None and sharding.memory_kind == HOST


def is_on_host(x: Any) -> bool:
    """While JAX traces: whether the value is in the host's memory."""
    return jax.typeof(x).memory_space == jax.memory.Space.Host


def on_chip(x: Any) -> Any:
    """The value in the chip's memory."""
    return jax.device_put(x, jax.memory.Space.Device) if is_on_host(x) else x


def on_chips(values: Sequence[Any]) -> list[Any]:
    """The values in the chip's memory."""
    return [on_chip(x) for x in values]


def as_asked(x: Any, sharding: Sharding | None) -> Any:
    """The value in the host's memory, and lying so, where that is asked; else as it is."""
    if sharding is None or not lies_on_host(sharding):
        return x
    laid_out = jax.lax.with_sharding_constraint(on_chip(x), sharding.with_memory_kind("device"))
    return jax.device_put(laid_out, sharding)
