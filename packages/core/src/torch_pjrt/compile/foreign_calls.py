"""The foreign functions that a program calls: listed when it is saved, set up before it is loaded.

JAX sets them up while it lowers. A process that loads a program lowers nothing, and a function that nobody
has set up is at address zero: calling it ends the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.mlir import ir

from torch_pjrt.client.client import Client
from torch_pjrt.session import session

_CUSTOM_CALL = "stablehlo.custom_call"


def targets_of(lowered: Any) -> tuple[str, ...]:
    """The targets of all custom calls in what JAX lowered, in the order of their names."""
    found: set[str] = set()

    def look(operation: Any) -> Any:
        if operation.name == _CUSTOM_CALL:
            found.add(operation.attributes["call_target_name"].value)
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(look)
    return tuple(sorted(found))


def unknown(targets: Iterable[str], client: Client) -> list[str]:
    """Those that no plugin can set up on this device."""
    return [t for t in targets if not any(row.has(t) for row in client.foreign_calls)]


# The rows of this process's client, which live as long as it.
_set_up: set[int] = session.own("foreign calls that are set up", set())


def set_up(targets: Iterable[str], client: Client) -> None:
    """Have the plugins set them up, once in a process. Whatever a plugin raises comes through."""
    for target in targets:
        for row in client.foreign_calls:
            if row.set_up is not None and id(row) not in _set_up and row.has(target):
                row.set_up()
                _set_up.add(id(row))
