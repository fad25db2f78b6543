"""Layers that repeat, found in the order of operators: what is at the same place of each is decided once.

A stretch of operators repeats if those that follow it are the same ones, fed in the same way: from the same
places of their own layer, from the layer before, or from parameters of their own. Of backward, which runs
through the layers in reverse, the inputs that forward made are the same places of forward's layers. What
reads nothing but such places, optimizers' updates say, repeats with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torch_pjrt_spmd.autoshard.operators import Operators
from torch_pjrt_spmd.autoshard.recording import BUFFER, Input
from torch_pjrt_spmd.roles import PARAMETER, STATE

_MOST_PERIODS = 24  # that are tried at one place


@dataclass(frozen=True, slots=True)
class Run:
    """Layers one after the other: where the first begins, how many operators one has, how many there are."""

    start: int
    period: int
    copies: int


@dataclass(frozen=True, slots=True, eq=False)
class Tied:
    """What is decided together.

    of_operator, of_input   the class of each. members: operators of each class that has some, in order.
    """

    of_operator: Sequence[int]
    of_input: Sequence[int]
    operators: Mapping[int, Sequence[int]]
    inputs: Mapping[int, Sequence[int]]
    runs: Sequence[Run]


class _Ties:
    """Classes while they are found. A value's class is (the class of what makes it, which of its results)."""

    def __init__(self, operators: Operators, inputs: Sequence[Input]) -> None:
        self.ops = operators.all
        self.specs = operators.specs
        self.inputs = inputs
        self.n = len(self.ops)
        self.parent = list(range(self.n + len(inputs)))
        self.maker = {v: (i, k) for i, op in enumerate(self.ops) for k, v in enumerate(op.outputs)}
        self.alike: dict[
            int, set[int]
        ] = {}  # values before the first layer, and what is theirs in others

    def node(self, value: int) -> tuple[int, int]:
        return (self.n - value - 1, 0) if value < 0 else self.maker[value]

    def root(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def tie(self, a: int, b: int) -> None:
        self.parent[self.root(b)] = self.root(a)

    def same(self, u: int, v: int) -> bool:
        if u == v:
            return True
        (a, i), (b, j) = self.node(u), self.node(v)
        return i == j and self.root(a) == self.root(b)

    def parameters(self, u: int, v: int) -> bool:
        """Whether both are parameters, or both buffers, of one shape."""
        if u >= 0 or v >= 0 or self.specs[u] is not self.specs[v]:
            return False
        a, b = self.inputs[-u - 1].role, self.inputs[-v - 1].role
        return a == b and a in (PARAMETER, BUFFER)

    def fits(self, at: int, period: int, start: int) -> bool:
        """Whether the operator at a place and the one a period later are fed in the same way."""
        for u, v in zip(self.ops[at].inputs, self.ops[at + period].inputs, strict=True):
            if self.same(u, v) or self.parameters(u, v):
                continue
            a, b = self.maker.get(u), self.maker.get(v)
            if a is not None and b is not None and a[1] == b[1] and b[0] - a[0] == period:
                continue
            is_from_before = a is None or a[0] < start
            if (
                b is not None
                and start <= b[0] < at + period
                and is_from_before
                and at < start + period
            ):
                continue  # what the first layer gets, and the second one from the first
            if self._known_alike(u, v):
                continue
            return False
        return True

    def _known_alike(self, u: int, v: int) -> bool:
        pairs = ((u, v), (v, u))
        return any(self.same(z, y) for x, y in pairs for z in self.alike.get(x, ()))


def tied(operators: Operators, inputs: Sequence[Input]) -> Tied:
    """The classes of a graph's operators and inputs."""
    ties = _Ties(operators, inputs)
    runs = _runs(ties)
    _tie_states(ties)
    _tie_followers(ties, runs)
    roots = [ties.root(i) for i in range(len(ties.parent))]
    numbers = {r: k for k, r in enumerate(dict.fromkeys(roots))}
    of = [numbers[r] for r in roots]
    of_ops: dict[int, list[int]] = {}
    of_inputs: dict[int, list[int]] = {}
    for i in range(ties.n):
        of_ops.setdefault(of[i], []).append(i)
    for i in range(len(inputs)):
        of_inputs.setdefault(of[ties.n + i], []).append(i)
    return Tied(of[: ties.n], of[ties.n :], of_ops, of_inputs, runs)


def _runs(ties: _Ties) -> list[Run]:
    kinds = np.array([hash((op.number, id(op.letters))) for op in ties.ops], np.int64)
    works = np.cumsum([0, *(len(op.letters.works) > 0 for op in ties.ops)])
    found: list[Run] = []
    at = 0
    while at < ties.n:
        run = _best_run(ties, kinds, works, at)
        if run is None:
            at += 1
            continue
        _tie_run(ties, run)
        found.append(run)
        at += run.period * run.copies
    return found


def _best_run(ties: _Ties, kinds: np.ndarray, works: np.ndarray, at: int) -> Run | None:
    best: Run | None = None
    later = np.flatnonzero(kinds[at + 1 :] == kinds[at])[: 8 * _MOST_PERIODS] + 1
    tried = 0
    for period in map(int, later):
        n_works = works[min(at + period, ties.n)] - works[at]
        if n_works < 2 or tried == _MOST_PERIODS:
            continue
        differs = np.flatnonzero(kinds[at : ties.n - period] != kinds[at + period :])
        length = int(differs[0]) if len(differs) else ties.n - period - at
        if length < period:
            continue
        tried += 1
        length = next((t for t in range(length) if not ties.fits(at + t, period, at)), length)
        copies = 1 + length // period
        if copies > 1 and (best is None or copies * period > best.copies * best.period):
            best = Run(at, period, copies)
    return best


def _tie_run(ties: _Ties, run: Run) -> None:
    for t in range(run.start, run.start + run.period):
        for k in range(1, run.copies):
            later = t + k * run.period
            for u, v in zip(
                ties.ops[later - run.period].inputs, ties.ops[later].inputs, strict=True
            ):
                if u < 0 and v < 0 and u != v:
                    ties.tie(ties.node(u)[0], ties.node(v)[0])
                elif k == 1 and not ties.same(u, v):
                    a = ties.maker.get(u)
                    if a is None or a[0] < run.start:
                        ties.alike.setdefault(u, set()).add(v)
            ties.tie(t, later)


def _tie_states(ties: _Ties) -> None:
    """What an optimizer keeps of parameters that are tied."""
    positions = {x.name: ties.n + i for i, x in enumerate(ties.inputs) if x.role == PARAMETER}
    first: dict[tuple[int, str], int] = {}
    for i, x in enumerate(ties.inputs):
        if x.role == STATE and x.of in positions:
            key = (ties.root(positions[x.of]), x.name.rpartition("/")[2])
            ties.tie(first.setdefault(key, ties.n + i), ties.n + i)


def _tie_followers(ties: _Ties, runs: Sequence[Run]) -> None:
    """Operators outside of runs that do the same with what is tied."""
    inside = np.zeros(ties.n, bool)
    for run in runs:
        inside[run.start : run.start + run.period * run.copies] = True
    several: dict[int, int] = {}
    for i in range(len(ties.parent)):
        several[ties.root(i)] = several.get(ties.root(i), 0) + 1
    first: dict[tuple[object, ...], int] = {}
    for i, op in enumerate(ties.ops):
        if inside[i] or not op.inputs:
            continue
        positions = [ties.node(v) for v in op.inputs]
        if all(several.get(ties.root(a), 1) == 1 for a, _ in positions):
            continue
        key = (op.number, id(op.letters), tuple((ties.root(a), k) for a, k in positions))
        leader = first.setdefault(key, i)
        if leader != i:
            ties.tie(leader, i)
            several[ties.root(leader)] = several.get(ties.root(leader), 1) + 1
