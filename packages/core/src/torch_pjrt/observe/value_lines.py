"""The line of the user's program that made each value that is on the device, noted while memory is traced.

Off, which is the default, nothing is asked of what records. On, the tape notes lines
(`observe/lines.py`); after each launch the values that it has computed get theirs. Values that are made of
arrays get theirs as they are made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch_pjrt.graph import tape as tapes
from torch_pjrt.graph.graph import graph_of
from torch_pjrt.graph.line import Line
from torch_pjrt.graph.tape import Tape, Value
from torch_pjrt.observe import lines
from torch_pjrt.session import session

_REASON = "TORCH_PJRT_TRACE_MEMORY"
_lines: WeakKeyDictionary[Value, str] = session.own("lines that made values", WeakKeyDictionary())


def install() -> None:
    """Note the line of every value made from now on. Who launches programs is to call `launched`."""
    lines.note_for(_REASON)
    tapes.on_array = _note_array


def launched(tape: Tape, numbers: Sequence[int]) -> None:
    """Called after a launch, while the tape has its values: those of these numbers have arrays now."""
    wanted = set(numbers)
    for node in graph_of(tape, ()).nodes:
        for number in wanted.intersection(node.outputs):
            _note(tape.values[number], node.line)


def _note_array(value: Value) -> None:
    _note(value, lines.user_line(sys._getframe(1)))


def _note(value: Value, line: Line | None) -> None:
    _lines[value] = str(line) if line is not None else "?"


def made() -> list[tuple[Any, str]]:
    """What is held by values whose lines were noted (arrays, elements of stacks), with `file:line`."""
    noted = list(_lines.items())
    return [(value.array, line) for value, line in noted if value.array is not None]
