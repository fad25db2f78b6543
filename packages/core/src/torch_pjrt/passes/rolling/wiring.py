"""What the iterations of a repetition read: made in the same one, carried, the same for all, one for each.

    inner     made in the same iteration
    carried   made some iterations before; the first iterations get theirs from outside
    const     one value from outside
    xs        another value from outside for each iteration

A repetition of operators whose wiring is none of these over all iterations is cut to the longest part in
which it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from torch_pjrt.graph.graph import Graph
from torch_pjrt.passes.rolling.detection import Repetition

_MOST_DELAY = 4  # iterations between making and reading a carried value
_MOST_PHASES = 4  # positions tried as the beginning of an iteration
_MOST_STARTS = 4  # first iterations tried before a break is accepted


@dataclass(frozen=True, slots=True)
class Inner:
    """Result `result` of the body's node `node`."""

    node: int
    result: int


@dataclass(frozen=True, slots=True)
class Carried:
    """What `node` made `delay` iterations before; `first` are the values of the first iterations."""

    node: int
    result: int
    first: tuple[int, ...]

    @property
    def delay(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True)
class Const:
    """One value from outside."""

    value: int


@dataclass(frozen=True, slots=True)
class Xs:
    """One value from outside for each iteration."""

    values: tuple[int, ...]


Source = Inner | Carried | Const | Xs


@dataclass(frozen=True, slots=True)
class Wiring:
    """`trip_count` iterations of `period` nodes, from the node at `start` on, and where the inputs are from.

    `sources` goes through the inputs of the body's nodes in order.
    """

    start: int
    period: int
    trip_count: int
    sources: tuple[Source, ...]

    @property
    def stop(self) -> int:
        return self.start + self.trip_count * self.period

    @property
    def saved(self) -> int:
        """How many nodes fewer there are to compile."""
        return (self.trip_count - 1) * self.period


class Inputs:
    """All inputs of a graph's nodes as arrays: the values, and the positions at which they are made.

    A position is the number of the node times `width`, plus that of the result; -1 for the graph's inputs.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = graph.nodes
        self.width = max((len(n.outputs) for n in nodes), default=1) or 1
        self.first = [0, *accumulate(len(n.inputs) for n in nodes)]
        self.values = np.fromiter(chain.from_iterable(n.inputs for n in nodes), np.int64)
        highest = max((v for n in nodes for v in n.outputs), default=-1)
        made = np.full(highest + 2, -1, np.int64)  # the last one stands for the graph's inputs
        for position, node in enumerate(nodes):
            for result, value in enumerate(node.outputs):
                made[value] = position * self.width + result
        self.positions = made[np.maximum(self.values, -1)]
        self.wanted = np.array(graph.outputs, np.int64)

    def of(self, start: int, stop: int) -> slice:
        """The inputs of these nodes."""
        return slice(self.first[start], self.first[stop])

    def read_outside(self, start: int, stop: int) -> frozenset[int]:
        """The values that nodes before `start` or from `stop` on read, or that are outputs."""
        inner = self.of(start, stop)
        parts = (self.values[: inner.start], self.values[inner.stop :], self.wanted)
        return frozenset(np.concatenate(parts).tolist())


def wired(repetition: Repetition, inputs: Inputs, fewest: int) -> Wiring | None:
    """The longest part of it whose iterations are wired alike, or None if that is too short.

    Where an iteration begins is chosen so that little is carried from one to the next.
    """
    best: Wiring | None = None
    for phase in _phases(repetition, inputs):
        start = repetition.start + phase
        iterations = (repetition.length - phase) // repetition.period
        part = _longest(start, repetition.period, iterations, inputs, fewest)
        if part is not None and (best is None or part.trip_count > best.trip_count):
            best = part
        if best is not None and best.trip_count == iterations:
            break
    return best


def _phases(repetition: Repetition, inputs: Inputs) -> list[int]:
    """Where an iteration might begin: those positions first over which the fewest values are carried."""
    start, period = repetition.start, repetition.period
    here = inputs.of(start + period, start + 3 * period)
    sizes = np.diff(inputs.first[start + period : start + 3 * period + 1])
    readers = np.repeat(np.arange(start + period, start + 3 * period), sizes)
    positions = inputs.positions[here]
    inside = positions >= start * inputs.width
    last: dict[int, int] = {}
    for position, reader in zip(positions[inside].tolist(), readers[inside].tolist(), strict=True):
        last[position] = reader  # readers come in order
    change = np.zeros(3 * period + 2, np.int64)
    for position, reader in last.items():
        change[position // inputs.width - start + 1] += 1
        change[reader - start + 1] -= 1
    cut = np.cumsum(change)[period : 2 * period]
    spare = min(repetition.length - repetition.repeats * period + 1, period)
    return np.argsort(cut[:spare], kind="stable")[:_MOST_PHASES].tolist()


def _longest(
    start: int, period: int, iterations: int, inputs: Inputs, fewest: int
) -> Wiring | None:
    here = inputs.of(start, start + iterations * period)
    values = inputs.values[here].reshape(iterations, -1)
    positions = inputs.positions[here].reshape(iterations, -1)
    width = inputs.width
    begins = (start + period * np.arange(iterations)[:, None]) * width
    relative = positions - begins
    first, best, tries = 0, (0, 0), 0
    while iterations - first > best[1] - best[0] and iterations - first >= fewest:
        stop = _alike(first, positions, relative, int(begins[first, 0]), period * width)
        if stop - first > best[1] - best[0]:
            best = (first, stop)
        if stop == iterations:
            break
        tries += 1
        first = first + 1 if tries % _MOST_STARTS else max(stop, first + 1)
    first, stop = best
    if stop - first < fewest:
        return None
    sources = _sources(
        values[first:stop],
        relative[first:stop],
        positions[first:stop] >= begins[first, 0],
        period * width,
        width,
    )
    return Wiring(start + first * period, period, stop - first, sources)


def _alike(first: int, positions: np.ndarray, relative: np.ndarray, begin: int, stride: int) -> int:
    """How far the iterations from `first` on are wired alike; `stride` is the distance between two."""
    inside = positions[first:] >= begin
    n = len(inside)
    reached = inside.any(0)
    from_row = np.where(reached, inside.argmax(0), 0)
    columns = np.arange(inside.shape[1])
    relative = relative[first:]
    reference = relative[from_row, columns]
    delay = -(reference // stride)
    strange = reached & ((delay != from_row) | (delay > _MOST_DELAY))
    rows = np.arange(n)[:, None]
    breaks = reached & (rows > from_row) & (~inside | (relative != reference))
    where = np.where(breaks.any(0), breaks.argmax(0), n)
    where = np.where(strange, from_row, where)
    return first + int(where.min(initial=n))


def _sources(
    values: np.ndarray, relative: np.ndarray, inside: np.ndarray, stride: int, width: int
) -> tuple[Source, ...]:
    sources: list[Source] = []
    reached = inside.any(0)
    delays = inside.argmax(0)
    same = (values == values[0]).all(0)
    for column in range(values.shape[1]):
        if not reached[column]:  # pyright: ignore[reportIndexIssue]
            if same[column]:
                sources.append(Const(int(values[0, column])))
            else:
                sources.append(Xs(tuple(values[:, column].tolist())))
            continue
        delay = int(delays[column])
        node, result = divmod(int(relative[delay, column]) + delay * stride, width)
        if delay:
            sources.append(Carried(node, result, tuple(values[:delay, column].tolist())))
        else:
            sources.append(Inner(node, result))
    return tuple(sources)
