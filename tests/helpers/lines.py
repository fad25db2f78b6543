"""The line that a test is at, to be compared with the one that an explanation names."""

from __future__ import annotations

import sys

from torch_pjrt.graph.line import Line


def here(after: int = 0) -> tuple[str, int]:
    """File and number of the line that is `after` lines below the caller's."""
    frame = sys._getframe(1)
    return frame.f_code.co_filename, frame.f_lineno + after


def at(line: Line | None) -> tuple[str, int] | None:
    """File and number of a line, as `here` gives them."""
    return None if line is None else (line.file, line.number)
