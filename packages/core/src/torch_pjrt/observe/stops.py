"""Where the program stops for the device: each sync and each read of a value, by cause and line."""

from __future__ import annotations

from dataclasses import dataclass

from torch_pjrt.graph.line import Line
from torch_pjrt.observe.causes import READING, cause_and_position
from torch_pjrt.observe.code_positions import UNKNOWN, line_at, shown
from torch_pjrt.observe.log import log
from torch_pjrt.session import session
from torch_pjrt.settings import settings

_MOST = 500
_ELSEWHERE = "others, at more lines than are listed"


@dataclass(slots=True)
class Stop:
    """One cause at one line.

    syncs     how often what was pending was run there.
    reads     how often a value came to the host there.
    seconds   the host's time in both: launching, compiling, waiting for the device, copying.
    """

    cause: str
    line: Line | None
    syncs: int = 0
    reads: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.cause} at {shown(self.line)}" if self.line is not None else self.cause


class _Stops:
    """All of them; a line may have several positions."""

    def __init__(self) -> None:
        self.by_line: dict[tuple[str, Line | None], Stop] = {}
        self.at_position: dict[tuple[str, int], Stop] = {}

    def forget(self) -> None:
        self.by_line.clear()
        self.at_position.clear()


_stops = session.own("where the program stopped for the device", _Stops())


def stop(cause: str = READING) -> Stop:
    """The stop that the running code is at; the caller adds to its numbers."""
    at = cause_and_position(cause)
    found = _stops.at_position.get(at)
    if found is None:
        key = (at[0], line_at(at[1]))
        if key not in _stops.by_line and len(_stops.by_line) >= _MOST:
            at, key = (_ELSEWHERE, UNKNOWN), (_ELSEWHERE, None)
        found = _stops.at_position[at] = _stops.by_line.setdefault(key, Stop(*key))
    return found


def syncing(cause: str, pending: int) -> Stop:
    """The stop of a sync that runs now, with `pending` values on the tape; logged."""
    here = stop(cause)
    here.syncs += 1
    if "sync" in settings.log:  # else the text is not made: that takes as long as a small sync
        log("sync", f"sync because of {here}; {pending} values were recorded")
    return here


def stops() -> list[Stop]:
    """All stops so far, those first that took the longest."""
    return sorted(_stops.by_line.values(), key=lambda s: -s.seconds)


def forget_stops() -> None:
    """Start the table anew."""
    _stops.forget()
