"""Positions in the user's code, cheap enough to be found at every sync.

A position (a code object and an instruction in it) is a small integer; it becomes a line when somebody asks.
The lines of operators are another matter: `observe/lines.py`.
"""

from __future__ import annotations

import os
from itertools import count
from types import CodeType, FrameType

from torch_pjrt.graph.line import Line
from torch_pjrt.session import session

UNKNOWN = 0
_MOST_POSITIONS = 100_000


class _Positions:
    """Their numbers, by the id of the code and the instruction; and what each number stands for.

    Threads find positions at the same time: a number is drawn from `free`, so that no two get the same.
    """

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, int], int] = {}
        self.numbered: dict[int, tuple[CodeType, int]] = {}
        self.free = count(UNKNOWN + 1)


_positions = session.own("positions in the user's code", _Positions())


def position_of(frame: FrameType | None) -> int:
    """The position at which this frame is; `UNKNOWN` for none."""
    if frame is None:
        return UNKNOWN
    code = frame.f_code
    key = (id(code), frame.f_lasti)  # hashing a code object would hash all of it
    position = _positions.numbers.get(key)
    if position is None:
        if len(_positions.numbered) >= _MOST_POSITIONS:
            return UNKNOWN
        position = next(_positions.free)
        _positions.numbered[position] = code, frame.f_lasti  # which keeps the code, and so its id
        _positions.numbers[key] = position
    return position


def line_at(position: int) -> Line | None:
    """The line of a position; None if it is not known."""
    at = _positions.numbered.get(position)
    if at is None:
        return None
    code, instruction = at
    number = next(
        (line for start, end, line in code.co_lines() if start <= instruction < end), None
    )
    return Line(code.co_filename, number or code.co_firstlineno, code.co_qualname)


def shown(line: Line | None) -> str | None:
    """A line for people: the file relative to the current folder, and the function."""
    if line is None:
        return None
    within = "" if line.function == "<module>" else f" ({line.function})"
    backward = ", in its backward" if line.backward else ""
    return f"{_shortened(line.file)}:{line.number}{within}{backward}"


def _shortened(file: str) -> str:
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):  # the folder is gone; another drive
        return file
    return file if relative.startswith("..") else relative
