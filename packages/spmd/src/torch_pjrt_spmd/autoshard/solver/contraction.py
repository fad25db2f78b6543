"""A problem made smaller without loss: what follows from forbidden pairs is decided once.

before  a - b - c, where b's table allows one strategy of a for each of b's       after  b - c
        a strategy that some neighbour forbids whatever it chooses                      gone
        a node with one strategy                                                        gone
        a table that is a number of its row + a number of its column                    gone

Nodes that are left are *variables*: each stands for all the nodes that its strategy decides. Programs for
machine learning forbid most pairs (an operator follows its operands), so of tens of thousands of nodes some
hundred to some thousand variables are left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN, Infeasible, Problem, added
from torch_pjrt_spmd.autoshard.solver.tables import Tables


class Contraction:
    """Variables of a problem: `costs[i]` and the tables `near[i][j]` of those that are left.

    Invariants: `near[j][i]` is `near[i][j]` transposed; after `settle`, each strategy that is left is
    allowed beside some strategy of each neighbour, and no table gives one end as a function of the other.
    """

    def __init__(self, problem: Problem) -> None:
        self.tables = Tables()
        self.costs: list[np.ndarray | None] = [
            np.minimum(costs, FORBIDDEN) for costs in problem.node_costs
        ]
        self.near: list[dict[int, int]] = [{} for _ in range(problem.nodes)]
        self.constant = 0
        self._log: list[
            tuple[str, int, int, np.ndarray]
        ] = []  # what was done, to be undone backwards
        self._waiting: deque[int] = deque()
        self._is_waiting = bytearray(problem.nodes)
        numbers = [self.tables.number(np.minimum(table, FORBIDDEN)) for table in problem.tables]
        for (i, j), which in zip(problem.edges.tolist(), problem.edge_tables.tolist(), strict=True):
            if i == j:
                self._add_cost(i, np.diagonal(self.tables.all[numbers[which]]))
            else:
                self._add_table(i, j, numbers[which])
        for i in range(problem.nodes):
            self._wait(i)
        self.settle()

    @property
    def left(self) -> list[int]:
        """The variables, by the number of the node that each keeps."""
        return [i for i, costs in enumerate(self.costs) if costs is not None]

    def forbid(self, i: int, strategies: np.ndarray) -> None:
        """Forbid strategies (bool [strategies of i]) of a variable; `settle` draws the conclusions."""
        costs = self.costs[i]
        assert costs is not None
        self.costs[i] = np.where(strategies, FORBIDDEN, costs)
        self._wait(i)

    def forbid_pairs(self, i: int, j: int, pairs: np.ndarray) -> None:
        table = np.where(pairs, FORBIDDEN, self.tables.all[self.near[i][j]])
        self._set_table(i, j, self.tables.number(table))

    def merge(self, i: int, j: int, choice: np.ndarray) -> None:
        """Let the strategy `choice[k]` of `j` follow from strategy `k` of its neighbour `i`."""
        self._merge(i, j, choice)

    def settle(self) -> None:
        """Draw all conclusions. Raises `Infeasible` where a variable has no strategy left."""
        while self._waiting:
            i = self._waiting.popleft()
            self._is_waiting[i] = False
            if self.costs[i] is not None:
                self._look_at(i)

    def maps(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """For each node of the problem its variable (-1: decided), and its strategy for each of that."""
        variables = np.full(len(self.costs), -1, np.int64)
        found: list[np.ndarray] = [np.zeros(1, np.int64)] * len(self.costs)
        for i, costs in enumerate(self.costs):
            if costs is not None:
                variables[i], found[i] = i, np.arange(len(costs))
        for what, i, j, positions in reversed(self._log):
            if what == "restrict":
                found[i] = positions[found[i]]
            else:  # j follows from i
                variables[j], found[j] = variables[i], positions[found[i]]
        return variables, found

    def _look_at(self, i: int) -> None:
        costs = self.costs[i]
        assert costs is not None
        allowed = costs < FORBIDDEN
        for table in self.near[i].values():
            allowed &= self.tables.kind(table).rows
        if not allowed.all():
            self._restrict(i, np.flatnonzero(allowed))
            costs = self.costs[i]
            assert costs is not None
        if len(costs) == 1:
            self._decide(i)
            return
        for j in list(self.near[i]):
            table = self.near[i].get(j)
            if table is None:
                continue
            kind = self.tables.kind(table)
            if kind.sum is not None:
                self._remove_edge(i, j)
                self._add_cost(i, kind.sum[0])
                self._add_cost(j, kind.sum[1])
                self._wait(i)
                self._wait(j)
                continue
            follows, leads = kind.column_of_row, kind.row_of_column
            if follows is not None and (leads is None or len(self.near[j]) <= len(self.near[i])):
                self._merge(i, j, follows)
            elif leads is not None:
                self._merge(j, i, leads)
                return

    def _restrict(self, i: int, positions: np.ndarray) -> None:
        costs = self.costs[i]
        assert costs is not None
        if len(positions) == 0:
            raise Infeasible(
                f"No choice is without a forbidden pair: none of the {len(costs)} strategies of node {i} is "
                "allowed beside those of its neighbours.",
                least_peak=None,
                time=None,
                proven=True,
            )
        self._log.append(("restrict", i, -1, positions))
        self.costs[i] = costs[positions]
        for j, table in list(self.near[i].items()):
            self._set_table(i, j, self.tables.picked(table, 0, positions))

    def _decide(self, i: int) -> None:
        costs = self.costs[i]
        assert costs is not None
        self.constant += int(costs[0])
        for j in list(self.near[i]):
            self._add_cost(j, self.tables.all[self.near[i][j]][0])
            self._remove_edge(i, j)
            self._wait(j)
        self.costs[i] = None

    def _merge(self, i: int, j: int, choice: np.ndarray) -> None:
        self._log.append(("merge", i, j, choice))
        costs = self.costs[j]
        assert costs is not None
        table = self.tables.all[self.near[i][j]]
        self._remove_edge(i, j)
        self._add_cost(i, added(costs[choice], table[np.arange(len(choice)), choice]))
        for k, between in list(self.near[j].items()):
            self._remove_edge(j, k)
            self._add_table(i, k, self.tables.picked(between, 0, choice))
        self.costs[j] = None
        self._wait(i)

    def _add_cost(self, i: int, more: np.ndarray) -> None:
        costs = self.costs[i]
        assert costs is not None
        self.costs[i] = added(costs, more)

    def _add_table(self, i: int, j: int, table: int) -> None:
        known = self.near[i].get(j)
        self._set_table(i, j, table if known is None else self.tables.sum(known, table))

    def _set_table(self, i: int, j: int, table: int) -> None:
        self.near[i][j] = table
        self.near[j][i] = self.tables.transposed(table)
        self._wait(i)
        self._wait(j)

    def _remove_edge(self, i: int, j: int) -> None:
        del self.near[i][j]
        del self.near[j][i]

    def _wait(self, i: int) -> None:
        if not self._is_waiting[i]:
            self._is_waiting[i] = True
            self._waiting.append(i)


def with_strategies(contraction: Contraction, choice: Iterable[int]) -> np.ndarray:
    """The strategy of each node (int64), from that of each variable in the order of `left`."""
    chosen = dict(zip(contraction.left, choice, strict=True))
    variables, maps = contraction.maps()
    return np.array(
        [maps[node][0 if v < 0 else chosen[v]] for node, v in enumerate(variables.tolist())],
        np.int64,
    )


def variable_strategies(contraction: Contraction, strategies: np.ndarray) -> np.ndarray:
    """The strategy of each variable (int64, in the order of `left`) that gives these to the nodes."""
    _, maps = contraction.maps()
    return np.array(
        [np.flatnonzero(maps[node] == strategies[node])[0] for node in contraction.left], np.int64
    )
