"""What is left of a problem after contraction, as flat arrays, which compiled loops can walk.

Variables are numbered from 0 in the order of the nodes they keep. Strategy `k` of variable `v` has the place
`offsets[v] + k`. Times are *checkpoints*: those at which the memory in use may exceed the limit, and which no
other time implies. What memory decided nodes take is already off the limit of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_pjrt_spmd.autoshard.solver.contraction import Contraction
from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN, Problem

NEVER = 1e30  # what a forbidden pair costs, in floats


@dataclass(frozen=True, eq=False)
class Core:
    names: np.ndarray  # int64 [variables]: the node that each keeps
    offsets: np.ndarray  # int64 [variables + 1]
    costs: np.ndarray  # int64 [positions]
    ends: np.ndarray  # int64 [edges, 2]: variables (v, w), v < w
    edge_tables: np.ndarray  # int64 [edges]: where the edge's table begins in `tables`
    tables: np.ndarray  # int64 [entries]: row-major, rows for v
    constant: int  # the cost of what is decided
    limits: np.ndarray  # int64 [checkpoints]: memory that variables may use
    checkpoints: np.ndarray  # int64 [checkpoints]: their times
    member_offsets: np.ndarray  # int64 [variables + 1]: the members of each variable
    member_spans: np.ndarray  # int64 [members, 2]: checkpoints [a, b) at which the member lives
    member_positions: np.ndarray  # int64 [members]: where its usages begin in `usages`
    usages: np.ndarray  # int64: for each member, the usage with each strategy of its variable

    @property
    def variables(self) -> int:
        return len(self.names)

    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def pairs(self, choice: np.ndarray) -> np.ndarray:
        """The entry of each edge's table (int64) that a choice (int [variables]) takes."""
        v, w = self.ends[:, 0], self.ends[:, 1]
        return self.tables[self.edge_tables + choice[v] * self.sizes()[w] + choice[w]]

    def is_allowed(self, choice: np.ndarray) -> bool:
        """Whether a choice has no forbidden pair."""
        return bool((self.pairs(choice) < FORBIDDEN).all())

    def cost(self, choice: np.ndarray) -> int:
        """The cost of a choice (int [variables]), exact."""
        own = self.costs[self.offsets[:-1] + choice]
        return exact_sum(own) + exact_sum(self.pairs(choice)) + self.constant

    def most(self) -> float:
        """No choice without forbidden pairs costs more than this and the constant; rounded."""
        total = 0.0
        sizes = self.sizes()
        for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            total += float(self.costs[a:b].max())
        for (v, w), begin in zip(self.ends, self.edge_tables, strict=True):
            table = self.tables[begin : begin + sizes[v] * sizes[w]]
            total += float(table[table < FORBIDDEN].max())
        return total * (1 + 1e-9) + 1.0

    def usage(self, choice: np.ndarray) -> np.ndarray:
        """The memory that the variables use at each checkpoint; int64."""
        of_member = np.repeat(np.arange(self.variables), np.diff(self.member_offsets))
        used = self.usages[self.member_positions + choice[of_member]]
        changes = np.zeros(len(self.limits) + 1, np.int64)
        np.add.at(changes, self.member_spans[:, 0], used)
        np.add.at(changes, self.member_spans[:, 1], -used)
        return np.cumsum(changes[:-1])


def exact_sum(numbers: np.ndarray) -> int:
    """The sum of int64 numbers as a Python integer, whatever its size."""
    high, low = numbers >> 32, numbers & 0xFFFFFFFF
    return (int(high.sum()) << 32) + int(low.sum())


def core_of(problem: Problem, contraction: Contraction) -> Core:
    """The core of a problem after contraction."""
    left = contraction.left
    number_of = np.full(problem.nodes + 1, -1, np.int64)
    number_of[left] = np.arange(len(left))
    costs = [kept for kept in contraction.costs if kept is not None]
    offsets = np.concatenate([[0], np.cumsum([len(kept) for kept in costs])]).astype(np.int64)
    ends, numbers = [], []
    for v, i in enumerate(left):
        for j, table in contraction.near[i].items():
            if i < j:
                ends.append((v, number_of[j]))
                numbers.append(table)
    used = sorted(set(numbers))
    begins = dict(
        zip(used, _begins([contraction.tables.all[table].size for table in used]), strict=True)
    )
    variables, maps = contraction.maps()
    limits, checkpoints, members = _memory(problem, number_of[variables], maps)
    order = np.argsort([member[0] for member in members], kind="stable")
    members = [members[at] for at in order]
    per_variable = np.bincount([member[0] for member in members], minlength=len(left)).astype(
        np.int64
    )
    return Core(
        names=np.array(left, np.int64),
        offsets=offsets,
        costs=_joined(costs),
        ends=np.array(ends, np.int64).reshape(-1, 2),
        edge_tables=np.array([begins[table] for table in numbers], np.int64),
        tables=_joined([contraction.tables.all[table].ravel() for table in used]),
        constant=contraction.constant,
        limits=limits,
        checkpoints=checkpoints,
        member_offsets=np.concatenate([[0], np.cumsum(per_variable)]).astype(np.int64),
        member_spans=np.array([member[1:3] for member in members], np.int64).reshape(-1, 2),
        member_positions=np.array(_begins([len(member[3]) for member in members]), np.int64),
        usages=_joined([member[3] for member in members]),
    )


def _memory(
    problem: Problem, variables: np.ndarray, maps: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, int, np.ndarray]]]:
    """Limits of the checkpoints, their times, and members (variable, first checkpoint, end, usages)."""
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64), []
    if problem.usage_limit is None:
        return nothing
    lives = problem.intervals[:, 0] < problem.intervals[:, 1]
    times = np.unique(problem.intervals[lives])
    if not len(times):
        return nothing
    firsts = np.searchsorted(times, problem.intervals[:, 0])
    ends = np.searchsorted(times, problem.intervals[:, 1])
    decided, most = np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
    raw: dict[tuple[int, int, int], np.ndarray] = {}
    for node in np.flatnonzero(lives).tolist():
        used = problem.node_usages[node][maps[node]]
        a, b, least = firsts[node], ends[node], used.min()
        decided[a] += least
        decided[b] -= least
        used = used - least
        if used.any():
            key = (int(variables[node]), int(a), int(b))
            known = raw.get(key)
            raw[key] = used if known is None else known + used
    for (_, a, b), used in raw.items():
        most[a] += used.max()
        most[b] -= used.max()
    decided, most = np.cumsum(decided), np.cumsum(most)
    limits = problem.usage_limit - decided
    binds = np.flatnonzero((most > limits) | (limits < 0))
    kept = binds[_not_implied(len(times), binds, limits, raw)] if len(binds) else binds
    merged: dict[tuple[int, int, int], np.ndarray] = {}
    for (variable, a, b), used in raw.items():
        first, end = int(np.searchsorted(kept, a)), int(np.searchsorted(kept, b))
        if first < end:
            key = (variable, first, end)
            known = merged.get(key)
            merged[key] = used if known is None else known + used
    return limits[kept], times[kept], [(*key, used) for key, used in merged.items()]


def _not_implied(
    times: int, binds: np.ndarray, limits: np.ndarray, raw: dict[tuple[int, int, int], np.ndarray]
) -> np.ndarray:
    """Which of the times `binds` are needed (bool): not those after or before which more lives for less."""
    spans = np.array([key[1:] for key in raw], np.int64).reshape(-1, 2)
    begun = np.cumsum(np.bincount(spans[:, 0], minlength=times))  # by then
    ended = np.cumsum(np.bincount(spans[:, 1], minlength=times))
    kept: list[int] = []  # a stack of positions in `binds`
    for at, time in enumerate(binds.tolist()):
        while kept and begun[time] >= 0:
            last = binds[kept[-1]]
            if ended[last] == ended[time] and limits[time] <= limits[last]:
                kept.pop()  # nothing has ended since: the new time has all that lived then
                continue
            break
        if kept:
            last = binds[kept[-1]]
            if begun[last] == begun[time] and limits[last] <= limits[time]:
                continue
        kept.append(at)
    return np.array(kept, np.int64)


def _begins(sizes: list[int]) -> list[int]:
    return [0, *np.cumsum(sizes)[:-1].tolist()] if sizes else []


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, np.int64)
