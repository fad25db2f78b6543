"""How far a loop over data has come, and where the next one begins."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch_pjrt_fsdp.data.errors import DataError

VERSION = 1


class Progress:
    """An epoch, and a place within it, which is whatever `start` is.

    Each loop is an epoch, as with PyTorch's loaders: a loop that begins after another goes to the next epoch,
    also where the other was left early. Only a place that was loaded is gone on from.
    """

    def __init__(self, start: Any) -> None:
        self._start = start
        self.epoch = 0
        self.place: Any = deepcopy(start)
        self._begun = False
        self._loaded = False

    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch, from its beginning, or from the place in it that was loaded."""
        if not (self._loaded and epoch == self.epoch):
            self._go(epoch, deepcopy(self._start))

    def load(self, epoch: int, place: Any) -> None:
        """The next loop goes on here."""
        self._go(epoch, place)
        self._loaded = True

    def claim(self) -> tuple[int, Any]:
        """A loop begins: where."""
        if self._begun:
            self._go(self.epoch + 1, deepcopy(self._start))
        self._begun, self._loaded = True, False
        return self.epoch, self.place

    def peek(self) -> tuple[int, Any]:
        """What `claim` would give."""
        return (self.epoch + 1, deepcopy(self._start)) if self._begun else (self.epoch, self.place)

    def finish(self) -> None:
        """A loop has come to the end of its epoch."""
        self._go(self.epoch + 1, deepcopy(self._start))

    def _go(self, epoch: int, place: Any) -> None:
        self.epoch, self.place = epoch, place
        self._begun = self._loaded = False


def checked(state: Any, kind: str, same: dict[str, Any]) -> dict[str, Any]:
    """A state that was saved by something of this kind over the same data.

    same  entries that must be as they were. Raises `DataError` otherwise.
    """
    if not isinstance(state, dict) or state.get("kind") != kind:
        seen = type(state).__name__
        if isinstance(state, dict):
            seen = (
                f"a state of kind {state['kind']!r}"
                if "kind" in state
                else f"keys {list(state)[:8]}"
            )
        raise DataError(
            "This is no state of this data.", saw=seen, expected=f"one of kind {kind!r}"
        )
    if state.get("version") != VERSION:
        raise DataError(
            "This state was saved by another version of this package.",
            saw=f"version {state.get('version')}",
            expected=f"version {VERSION}",
        )
    for name, expected in same.items():
        if state.get(name) != expected:
            raise DataError(
                f"The state was saved with another `{name}`: the order of samples differs.",
                saw=f"{name}={state.get(name)!r}",
                expected=f"{name}={expected!r}",
                hint="make the sampler as it was made when the state was saved; batch size, processes and "
                "workers may change",
            )
    return state
