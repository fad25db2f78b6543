"""The problem that the solver solves, and what it answers; numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FORBIDDEN = 10**18  # an entry of at least this much: the two strategies do not go together


def added(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The sum of costs (int64), where what is forbidden stays exactly that, whatever is added."""
    is_forbidden = (one >= FORBIDDEN) | (other >= FORBIDDEN)
    return np.where(is_forbidden, FORBIDDEN, np.minimum(one + other, FORBIDDEN))


@dataclass(frozen=True, eq=False)
class Problem:
    """Choose a strategy for each node: least sum of node costs and edge entries, within a limit of memory.

    Costs and usages are integers (int64). Sums of them may exceed what a float64 holds exactly.
    """

    node_costs: list[np.ndarray]  # of node i: int64 [strategies of i]
    node_usages: list[np.ndarray]  # of node i: int64 [strategies of i]: memory while the node lives
    intervals: np.ndarray  # int64 [nodes, 2]: node i lives at the times [a, b); none where b <= a
    edges: np.ndarray  # int64 [edges, 2]: the nodes (i, j) of each; it may join i to itself
    tables: list[np.ndarray]  # distinct tables: int64 [strategies of i, strategies of j]
    edge_tables: np.ndarray  # int64 [edges]: which of `tables` is the edge's
    usage_limit: int | None = None  # of all nodes that live at any one time; None: no limit

    @property
    def nodes(self) -> int:
        return len(self.node_costs)

    def cost(self, choice: np.ndarray) -> int:
        """The cost of a choice (int [nodes]), exact; forbidden pairs count as they stand in the tables."""
        own = sum(int(costs[k]) for costs, k in zip(self.node_costs, choice, strict=True))
        between = sum(
            int(self.tables[table][choice[i], choice[j]])
            for (i, j), table in zip(self.edges, self.edge_tables, strict=True)
        )
        return own + between

    def is_allowed(self, choice: np.ndarray) -> bool:
        """Whether a choice has no forbidden strategy and no forbidden pair."""
        own = (int(costs[k]) for costs, k in zip(self.node_costs, choice, strict=True))
        between = (
            int(self.tables[table][choice[i], choice[j]])
            for (i, j), table in zip(self.edges, self.edge_tables, strict=True)
        )
        return all(cost < FORBIDDEN for cost in (*own, *between))

    def usage_over_time(self, choice: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The times at which the memory in use changes, and the memory in use from each on; int64 both."""
        used = np.array(
            [usages[k] for usages, k in zip(self.node_usages, choice, strict=True)], np.int64
        )
        begins, ends = self.intervals[:, 0], self.intervals[:, 1]
        lives = begins < ends
        times, positions = np.unique(
            np.concatenate([begins[lives], ends[lives]]), return_inverse=True
        )
        changes = np.zeros(len(times), np.int64)
        np.add.at(changes, positions, np.concatenate([used[lives], -used[lives]]))
        return times, np.cumsum(changes)

    def peak(self, choice: np.ndarray) -> int:
        """The largest memory in use at any time; 0 where nothing lives."""
        return int(max(self.usage_over_time(choice)[1], default=0))


@dataclass(frozen=True, eq=False)
class Solution:
    """A choice within the limit, without forbidden pairs."""

    choice: np.ndarray  # int64 [nodes]
    cost: int
    lower_bound: int  # no choice costs less
    proven: bool  # the choice is an optimum: cost == lower_bound
    seconds: float
    failure: Exception | None = (
        None  # why the search ended early, the choice being what was known then
    )


class Infeasible(ValueError):
    """No choice within the limit was found.

    `least_peak` is the least memory that any choice found needs at its fullest time, `time` that time, and
    `proven` says that none can do with the limit.
    """

    def __init__(
        self, text: str, *, least_peak: int | None, time: int | None, proven: bool
    ) -> None:
        super().__init__(text)
        self.least_peak, self.time, self.proven = least_peak, time, proven
