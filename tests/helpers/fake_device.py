"""A device for tests of what happens before one is started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_pjrt.plugin import Device


class Fake(Device):
    """A device that is never started."""

    def __init__(self, name: str, priority: int = 0, objection: str | None = None) -> None:
        self.name = name
        self.priority = priority
        self._objection = objection

    def objection(self) -> str | None:
        return self._objection

    def start(self) -> Sequence[Any]:
        raise AssertionError("started")
