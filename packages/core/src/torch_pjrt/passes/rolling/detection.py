"""Where a sequence of labels repeats itself: all periods of which there are enough repetitions.

Labels are compared by rank, in windows of 1, 2, 4, ... of them; windows of equal rank are equal. In a
repetition of period p each window of p to 2p labels has its next occurrence p further on, so that each
period is among the distances of one level. Some n log n comparisons, all in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_MOST_PERIODS = 32  # looked at, of each level


@dataclass(frozen=True, slots=True)
class Repetition:
    """`labels[i] == labels[i + period]` as long as both lie between `start` and `start + length`."""

    start: int
    period: int
    length: int

    @property
    def repeats(self) -> int:
        """How many whole periods there are."""
        return self.length // self.period

    @property
    def saved(self) -> int:
        """How many labels need not be written if one period is."""
        return (self.repeats - 1) * self.period

    def without(self, start: int, stop: int) -> Iterator[Repetition]:
        """What is left of it before `start` and from `stop` on."""
        end = self.start + self.length
        if self.start < start:
            yield Repetition(self.start, self.period, min(end, start) - self.start)
        if end > stop:
            first = max(self.start, stop)
            yield Repetition(first, self.period, end - first)


def repetitions(labels: Sequence[int], fewest: int = 3) -> list[Repetition]:
    """All that hold `fewest` whole periods or more, those that save most first."""
    array = np.unique(np.asarray(labels, np.int64), return_inverse=True)[1]
    found = {r for period in _periods(array, fewest) for r in _of_period(array, period, fewest)}
    return sorted(found, key=lambda r: (-r.saved, r.period, r.start))


def _periods(labels: np.ndarray, fewest: int) -> Iterator[int]:
    ranks, width = labels, 1
    while len(ranks) > 1 and width < 2 * (len(labels) // fewest):
        order = np.argsort(ranks, kind="stable")
        distances = np.diff(order)[ranks[order[1:]] == ranks[order[:-1]]]
        distances = distances[(2 * distances > width) & (distances <= width)]
        votes = np.bincount(distances)
        most = np.argsort(votes, kind="stable")[::-1][:_MOST_PERIODS]
        yield from (int(period) for period in most if votes[period])
        if len(ranks) <= width:
            return
        pairs = ranks[:-width].astype(np.int64) * len(labels) + ranks[width:]
        ranks = np.unique(pairs, return_inverse=True)[1]
        width *= 2


def _of_period(labels: np.ndarray, period: int, fewest: int) -> Iterator[Repetition]:
    equal = np.concatenate([[False], labels[period:] == labels[:-period], [False]])
    edges = np.flatnonzero(equal[1:] != equal[:-1])
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - start >= (fewest - 1) * period:
            yield Repetition(start, period, stop - start + period)
