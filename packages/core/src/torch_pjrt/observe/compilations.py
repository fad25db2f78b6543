"""Each compilation: what it cost, how often its program ran, and why it was needed.

The cache of programs says here when it compiles (`compile/programs.py`); nothing here is in the path of a
program that is known.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch_pjrt.errors import TooManyPrograms
from torch_pjrt.graph.tape import Tape
from torch_pjrt.observe import lines
from torch_pjrt.observe.code_positions import shown
from torch_pjrt.observe.counters import counters
from torch_pjrt.observe.difference import ADVICE, Difference, difference
from torch_pjrt.observe.log import log
from torch_pjrt.observe.recorded import Key, RecordedProgram, lines_from, nearest, recorded
from torch_pjrt.session import session
from torch_pjrt.settings import settings

_MOST_LISTED = 1000
HOW_TO_SEE_LINES = "`TORCH_PJRT_LOG=recompile` notes the lines"


@dataclass(slots=True, eq=False)
class Compilation:
    """One program: its compilation and its runs.

    number       counts compilations from 0.
    n_operators  how many operators the tape had recorded.
    cause        of the sync that needed it, with its line.
    why          the difference to the nearest known program; None for the first of all.
    seconds      lowering and compiling, or loading. loaded: it was found on disk.
    runs         how often it was launched.
    """

    number: int
    n_operators: int
    n_inputs: int
    n_outputs: int
    cause: str
    why: Difference | None
    seconds: float = 0.0
    loaded: bool = False
    runs: int = 0

    def __str__(self) -> str:
        text = f"program {self.number} ({self.n_operators} operators) at the sync by {self.cause}"
        return f"{text}: {explained(self.why)}" if self.why else f"{text}: the first"


def explained(why: Difference) -> str:
    """What differs, where, and what to do about it, in a sentence each."""
    where = f", at {shown(why.line)}" if why.line is not None else ""
    unknown = (
        f" The line was not noted: {HOW_TO_SEE_LINES}."
        if not where and why.kind in _HAVE_LINES
        else ""
    )
    return f"{why.what}{where}.{unknown} Advice: {why.advice}."


_HAVE_LINES = frozenset(ADVICE) - {
    "seeding",
    "precision",
    "rolling",
    "options",
    "inputs",
    "again",
    "ranks",
    "plan",
}


class _Compilations:
    """All of this process.

    known     what the programs in the cache were recorded from, by the cache's key.
    listed    the last compilations; `count` is how many there were.
    noting    lines are noted, since recompilations are logged.
    """

    def __init__(self) -> None:
        self.known: dict[Key, RecordedProgram] = {}
        self.listed: deque[Compilation] = deque(maxlen=_MOST_LISTED)
        self.count = 0
        self.noting = False

    def forget(self) -> None:
        self.known.clear()
        self.listed.clear()
        self.count = 0


_all = session.own("compilations", _Compilations())


def note_lines_if_logged() -> None:
    """Have the lines of operators noted as long as recompilations are logged. Called before each new tape."""
    if ("recompile" in settings.log) is not _all.noting:
        _all.noting = not _all.noting
        (lines.note_for if _all.noting else lines.stop_for)("recompile")


@contextmanager
def compiling(
    tape: Tape,
    key: Key,
    donated: Sequence[int],
    changing: frozenset[tuple[type, int]],
    cause: str,
) -> Iterator[Compilation]:
    """Around the compilation of a program; logs why it is needed, and keeps what it needed for the next.

    `changing` are the numbers that are inputs of this program.
    """
    new = recorded(tape, key, donated)
    compilation = Compilation(
        _all.count, len(new), len(new.specs), len(new.live), cause, _why(new, key)
    )
    if compilation.why is not None:
        log("recompile", str(compilation))
    start, loaded = time.perf_counter(), counters.programs_loaded
    yield compilation
    compilation.loaded = counters.programs_loaded > loaded
    compilation.seconds = time.perf_counter() - start
    _all.count += 1
    _all.known[key] = replace(new, changing=changing)
    _all.listed.append(compilation)


def note_lines(tape: Tape, key: Key) -> None:
    """Learn the lines of a program that is known, from a tape that was noted."""
    known = _all.known.get(key)
    if known is not None and not known.lines:
        known.lines = lines_from(tape, known.starts)


def check_limit(n_programs: int, tape: Tape, key: Key, donated: Mapping[int, int]) -> None:
    """Raise `TooManyPrograms` if there may be no more than these `n_programs`."""
    if n_programs < settings.max_programs:
        return
    why = _why(recorded(tape, key, tuple(donated)), key)
    raise TooManyPrograms(
        f"{n_programs} programs have been compiled, and one more is needed.",
        saw=explained(why) if why is not None else None,
        expected=f"at most `torch_pjrt.config.max_programs` = {settings.max_programs}",
        hint="print(torch_pjrt.report()) shows why the last ones were compiled. Nothing is lost: set a "
        "higher limit (TORCH_PJRT_MAX_PROGRAMS, or in torch_pjrt.config) and go on",
    )


def compilations() -> list[Compilation]:
    """The last ones, the oldest first."""
    return list(_all.listed)


def forget_known() -> None:
    """The cache is empty: the next program is the first again."""
    _all.known.clear()


def _why(new: RecordedProgram, key: Key) -> Difference | None:
    old = _all.known.get(key)
    if old is None:
        old = nearest(new, list(_all.known.values()))
    return None if old is None else difference(new, old)
