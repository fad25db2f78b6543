"""What a process must do before it runs a program that calls foreign functions and that it did not lower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class ForeignCalls:
    """Custom calls that work in a process which has only loaded the program they are in.

    targets   their names, as StableHLO has them; `*` stands for anything.
    set_up    does what lowering such a call does beside: fills in addresses, registers functions. Called in
              each process before the first program with one of `targets` is loaded. None: there is nothing
              to do.

        >>> ForeignCalls(["mine.*"]).has("mine.softmax")
        True
    """

    targets: Sequence[str]
    set_up: Callable[[], object] | None = None

    def has(self, target: str) -> bool:
        """Whether the custom call `target` is one of these."""
        return any(fnmatchcase(target, pattern) for pattern in self.targets)
