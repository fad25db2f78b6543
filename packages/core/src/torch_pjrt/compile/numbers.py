"""Python numbers of the calls on a tape: which are inputs of its program, and which are constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_pjrt import dtypes
from torch_pjrt.compile.build import as_signed, seeding_words

if TYPE_CHECKING:
    from torch_pjrt.graph.tape import Tape


class NumberPlan:
    """Which numbers of a tape are inputs of a program, and what the others were when it was compiled."""

    def __init__(self, tape: Tape, changing_ints: np.ndarray, changing_floats: np.ndarray) -> None:
        self.ints = changing_ints
        self.floats = changing_floats
        self.constants = self._constants(tape)

    def _constants(self, tape: Tape) -> tuple[bytes, tuple[int, ...]]:
        """The numbers that are no inputs; floats by their bits, so that -0.0 and nan are told apart."""
        floats = np.array(tape.floats, np.float64)
        ints = tape.ints
        if self.floats.size:
            floats = np.delete(floats, self.floats)
        if self.ints.size:
            changing = set(self.ints.tolist())
            ints = [n for i, n in enumerate(ints) if i not in changing]
        return floats.tobytes(), tuple(ints)

    def fits(self, tape: Tape) -> bool:
        """Whether the constants are those of this tape."""
        if not tape.floats and not tape.ints:
            return self.constants == (b"", ())
        return self._constants(tape) == self.constants

    def widened(self, tape: Tape, first: Tape | NumberHistory) -> NumberPlan:
        """This plan with the numbers that differ between two tapes made inputs as well."""
        ints = {i for i, (a, b) in enumerate(zip(tape.ints, first.ints, strict=True)) if a != b}
        bits = np.array(tape.floats, np.float64).view(np.int64)
        first_bits = np.array(first.floats, np.float64).view(np.int64)
        floats = set(np.flatnonzero(bits != first_bits).tolist())
        return NumberPlan(
            tape,
            np.array(sorted(ints | set(self.ints.tolist())), np.int64),
            np.array(sorted(floats | set(self.floats.tolist())), np.int64),
        )

    @property
    def changing(self) -> frozenset[tuple[type, int]]:
        return frozenset(
            [(int, int(i)) for i in self.ints] + [(float, int(i)) for i in self.floats]
        )

    def arguments(self, tape: Tape) -> list[np.ndarray]:
        """The program's last arguments: integers (seeds, offsets, changing ints), then floats."""
        if not tape.draws and not tape.floats and not tape.ints:
            return []
        return self.arguments_of([n for draw in tape.draws for n in draw], tape.ints, tape.floats)

    def arguments_of(
        self, draws: list[int], all_ints: Sequence[int], all_floats: Sequence[float]
    ) -> list[np.ndarray]:
        """As `arguments`, from the seeds and offsets and all numbers of a tape."""
        ints = [
            n for pair in zip(draws[::2], draws[1::2], strict=True) for n in seeding_words(*pair)
        ]
        wide = dtypes.are_wide()
        # Unsigned ones wrap around; where there are only 32 bits, NumPy refuses what does not fit.
        ints += [as_signed(n, 64) if wide else n for n in [all_ints[i] for i in self.ints]]
        floats = [all_floats[i] for i in self.floats]
        arguments = []
        if ints:
            arguments.append(np.array(ints, np.int64 if wide else np.int32))
        if floats:
            arguments.append(np.array(floats, np.float64 if wide else np.float32))
        return arguments


class NumberHistory:
    """The numbers of the tape for which an entry was first compiled."""

    def __init__(self, tape: Tape) -> None:
        self.ints = list(tape.ints)
        self.floats = list(tape.floats)


def all_numbers(tape: Tape) -> tuple[Sequence[int], Sequence[int]]:
    """Of a program that processes run together no number is a constant: theirs may differ."""
    return range(len(tape.ints)), range(len(tape.floats))
