"""A Lightning module during a captured step: what it logs is kept, and what it asks its trainer for is noted.

A replay runs no Python. So what a step logs are results of it, which are logged after each replay; and what
the trainer says (its epoch, its step, its loggers) is no part of a step: it may be another thing in the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Seen:
    """What was done with the trainer.

    logged   the arguments of each `log`.
    names    of what was read or written of the trainer.
    """

    logged: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


@contextmanager
def apart(module: Any) -> Iterator[Seen]:
    """While it lasts, nothing that the module logs is logged, and what is asked of its trainer is noted."""
    seen = Seen()
    parts = [part for part in module.modules() if "_trainer" in vars(part)]
    before = [vars(part)["_trainer"] for part in parts]
    own = vars(module).get("log")
    vars(module)["log"] = lambda *args, **named: seen.logged.append((args, named))
    try:
        for part, trainer in zip(parts, before, strict=True):
            vars(part)["_trainer"] = _Noted(trainer, seen.names)
        yield seen
    finally:
        for part, trainer in zip(parts, before, strict=True):
            vars(part)["_trainer"] = trainer
        if own is None:
            del vars(module)["log"]
        else:
            vars(module)["log"] = own


class _Noted:
    """A trainer; notes what is asked of it."""

    def __init__(self, trainer: Any, names: set[str]) -> None:
        object.__setattr__(self, "_of", (trainer, names))

    def __getattribute__(self, name: str) -> Any:
        trainer, names = object.__getattribute__(self, "_of")
        names.add(name)
        return getattr(trainer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        trainer, names = object.__getattribute__(self, "_of")
        names.add(name)
        setattr(trainer, name, value)
