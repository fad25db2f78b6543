"""What a program was compiled from, in a form in which two of them can be compared quickly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_pjrt.graph.line import Line
from torch_pjrt.graph.signature import Signature
from torch_pjrt.graph.tape import Tape
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.observe.lines import NotedCode
from torch_pjrt.session import session

Options = tuple[tuple[str, object], ...]
Shardings = tuple[Any, ...]  # JAX's, of the inputs
Passes = tuple[Any, ...]  # those of this program alone (`Pass` of a layer above)
Key = tuple[
    tuple[Any, ...],
    tuple[int, ...],
    tuple[TensorSpec, ...],
    int,
    str,
    str,
    Options,
    str | None,
    Passes,
    Shardings,
]


@dataclass(slots=True, eq=False)
class RecordedProgram:
    """One recorded program. Arrays have an element for each operator that was recorded.

    code, live, specs, n_draws, precision, rolling, options, joint, passes, shardings   the cache's key: see
                                  `compile/programs.py`. The shardings are empty where all is on one chip.
    signatures, operators         the numbers of the signatures, and of the operators alone.
    starts, firsts                where the operator starts in the code; the number of its first result.
    lines                         where in the user's code each was recorded; empty if that was not noted.
    ints, floats                  the Python numbers of the calls.
    changing                      (kind, index) of those that are inputs of the program by now.
    donated                       the inputs whose memory the program takes.
    """

    code: tuple[Any, ...]
    live: tuple[int, ...]
    specs: tuple[TensorSpec, ...]
    n_draws: int
    precision: str
    rolling: str
    options: Options
    joint: str | None
    passes: Passes
    shardings: Shardings
    signatures: np.ndarray
    operators: np.ndarray
    starts: np.ndarray
    firsts: np.ndarray
    lines: tuple[Line | None, ...]
    ints: tuple[int, ...]
    floats: tuple[float, ...]
    changing: frozenset[tuple[type, int]]
    donated: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.signatures)

    def signature(self, index: int) -> Signature:
        return self.code[self.starts[index]]

    def op(self, index: int) -> str:
        """The name of the operator there, for people."""
        return f"`{self.signature(index).op}`"

    def line(self, index: int) -> Line | None:
        """The user's line that recorded the operator there; None where it was not noted."""
        return self.lines[index] if 0 <= index < len(self.lines) else None

    def maker(self, value: int) -> int:
        """Which operator makes the (pending) value."""
        return int(np.searchsorted(self.firsts, value, side="right")) - 1

    def reader(self, value: int) -> int | None:
        """The first operator that reads the value."""
        for index, start in enumerate(self.starts.tolist()):
            if value in self.inputs(index, start):
                return index
        return None

    def inputs(self, index: int, start: int | None = None) -> tuple[int, ...]:
        """The values that the operator reads."""
        first = (int(self.starts[index]) if start is None else start) + 1
        return self.code[first : first + len(self.signature(index).specs)]

    def named(self, value: int) -> str:
        """A value in words."""
        if value < 0:
            return f"the program's input {-value - 1}, {self.specs[-value - 1]}"
        index = self.maker(value)
        return f"the result of {self.op(index)} (operator {index})"

    def numbers(self) -> Iterable[tuple[int, type, int]]:
        """For each Python number: the operator that it belongs to, int or float, and its index there."""
        counts = {int: 0, float: 0}
        for index in range(len(self)):
            for kind in self.signature(index).numbers:
                yield index, kind, counts[kind]
                counts[kind] += 1


_operators: dict[Any, int] = session.own("operators in programs, numbered", {})


def recorded(tape: Tape, key: Key, donated: Sequence[int]) -> RecordedProgram:
    """What this tape holds. No number is an input yet."""
    code = key[0]
    rows: list[tuple[int, int, int, int]] = []
    position = value = 0
    while position < len(code):
        signature = code[position]
        operator = _operators.setdefault(signature.op, len(_operators))
        rows.append((signature.number, operator, position, value))
        position += 1 + len(signature.specs) + 2 * signature.random
        value += len(signature.outs)
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return RecordedProgram(
        *key,
        *columns,
        lines=lines_from(tape, columns[2]),
        ints=tuple(tape.ints),
        floats=tuple(tape.floats),
        changing=frozenset(),
        donated=tuple(donated),
    )


def lines_from(tape: Tape, starts: np.ndarray) -> tuple[Line | None, ...]:
    """The line of each operator, which starts there in the tape's code; none if they were not noted."""
    if not isinstance(tape.code, NotedCode):
        return ()
    noted = tape.code.lines
    if not noted:
        return ()
    lines = [noted.get(start) for start in starts.tolist()]
    return tuple([None if line is None else _lines.setdefault(line, line) for line in lines])


# One object for equal lines: programs have thousands.
_lines: dict[Line, Line] = session.own("lines of programs", {})


def common_ends(a: np.ndarray, b: np.ndarray) -> tuple[int, int]:
    """How many elements two arrays share at their start, and of the rest at their end."""
    n = min(len(a), len(b))
    start = _run_of_true(a[:n] == b[:n])
    rest = n - start
    end = _run_of_true((a[len(a) - rest :] == b[len(b) - rest :])[::-1]) if rest else 0
    return start, end


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """Which share of the longer array is the same in the other, from 0 to 1."""
    longest = max(len(a), len(b))
    if not longest:
        return 1.0
    same = sum(common_ends(a, b))
    if len(a) == len(b):
        same = max(same, int(np.count_nonzero(a == b)))
    return same / longest


def nearest(new: RecordedProgram, known: Sequence[RecordedProgram]) -> RecordedProgram | None:
    """The known program that `new` differs from the least: by operators, then shapes, then the rest."""
    best = _best(known, lambda old: likeness(new.operators, old.operators))
    best = _best(best, lambda old: likeness(new.signatures, old.signatures))
    best = _best(best, lambda old: old.code == new.code)
    best = _best(best, lambda old: old.specs == new.specs and old.n_draws == new.n_draws)
    best = _best(best, lambda old: -len(set(old.live) ^ set(new.live)))
    return best[-1] if best else None


def _best(known: Sequence[RecordedProgram], score: Any) -> Sequence[RecordedProgram]:
    if len(known) < 2:
        return known
    scores = [score(old) for old in known]
    most = max(scores)
    return [old for old, s in zip(known, scores, strict=True) if s == most]


def _run_of_true(flags: np.ndarray) -> int:
    return len(flags) if flags.all() else int(flags.argmin())
