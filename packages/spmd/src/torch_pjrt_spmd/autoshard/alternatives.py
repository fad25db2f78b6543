"""What another choice at one node would cost, with the nodes around it chosen anew and all others as they
are.

The nodes around are eliminated one by one, which is exact: a node's best choice for each choice of its
neighbours, then the next. Nodes that would make a table too large stay as they are.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from math import prod

import numpy as np

from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN, Problem

_AROUND = 36  # nodes that are chosen anew
_MOST = 200_000  # elements of a table


@dataclass(slots=True, eq=False)
class Factor:
    """A cost by the choices of some nodes."""

    scope: tuple[int, ...]
    table: np.ndarray


class Around:
    """Asks what choices at single nodes cost, beside one choice for all."""

    def __init__(self, problem: Problem, choice: np.ndarray) -> None:
        self.problem, self.choice = problem, choice
        self.edges: defaultdict[int, list[tuple[int, np.ndarray]]] = defaultdict(list)
        self.own = [np.asarray(c, float) for c in problem.node_costs]
        for (i, j), which in zip(problem.edges, problem.edge_tables, strict=True):
            table = np.minimum(problem.tables[which], FORBIDDEN).astype(float)
            if i == j:
                self.own[i] = self.own[i] + np.diag(table)
            else:
                self.edges[int(i)].append((int(j), table))
                self.edges[int(j)].append((int(i), table.T))

    def costs(self, node: int) -> tuple[np.ndarray, list[tuple[int, tuple[int, ...], np.ndarray]]]:
        """Of each choice at a node what it costs more than the choice that was made, and how to go back."""
        free = self._around(node)
        factors = [self._own_factor(v, free) for v in free]
        for v in free:
            factors += [Factor((v, u), table) for u, table in self.edges[v] if u in free and v < u]
        steps: list[tuple[int, tuple[int, ...], np.ndarray]] = []
        left = set(free) - {node}
        while left:
            v, scope = self._next(left, factors)
            of_v = [f for f in factors if v in f.scope]
            factors = [f for f in factors if v not in f.scope]
            if prod(len(self.own[u]) for u in scope) > _MOST:
                k = int(self.choice[v])
                factors += [
                    Factor(tuple(u for u in f.scope if u != v), f.table.take(k, f.scope.index(v)))
                    for f in of_v
                ]
            else:
                table = _sum(of_v, scope, [len(self.own[u]) for u in scope])
                rest = scope[1:]
                steps.append((v, rest, table.argmin(axis=0)))
                factors.append(Factor(rest, table.min(axis=0)))
            left.discard(v)
        total = _sum(factors, (node,), [len(self.own[node])])
        return total - total[int(self.choice[node])], steps

    def choice_with(
        self, node: int, k: int, steps: list[tuple[int, tuple[int, ...], np.ndarray]]
    ) -> np.ndarray:
        """The choice for all nodes that goes with `k` at one."""
        found = self.choice.copy()
        found[node] = k
        for v, rest, best in reversed(steps):
            found[v] = best[tuple(int(found[u]) for u in rest)]
        return found

    def _around(self, node: int) -> list[int]:
        found, at = [node], 0
        while at < len(found) and len(found) < _AROUND:
            for u, _ in self.edges[found[at]]:
                if u not in found and len(found) < _AROUND:
                    found.append(u)
            at += 1
        return found

    def _own_factor(self, v: int, free: list[int]) -> Factor:
        table = self.own[v].copy()
        for u, of_edge in self.edges[v]:
            if u not in free:
                table = table + of_edge[:, int(self.choice[u])]
        return Factor((v,), table)

    def _next(self, left: set[int], factors: list[Factor]) -> tuple[int, tuple[int, ...]]:
        best: tuple[float, int, tuple[int, ...]] | None = None
        for v in sorted(left):
            scope = {u for f in factors if v in f.scope for u in f.scope} | {v}
            size = float(prod(len(self.own[u]) for u in scope))
            if best is None or size < best[0]:
                best = size, v, (v, *sorted(scope - {v}))
        assert best is not None
        return best[1], best[2]


def _sum(factors: list[Factor], scope: tuple[int, ...], sizes: list[int]) -> np.ndarray:
    total = np.zeros(sizes)
    for f in factors:
        order = sorted(range(len(f.scope)), key=lambda a: scope.index(f.scope[a]))
        shape = [sizes[d] if u in f.scope else 1 for d, u in enumerate(scope)]
        total = total + f.table.transpose(order).reshape(shape)
    return total


def polished(problem: Problem, choice: np.ndarray, seconds: float) -> np.ndarray:
    """A choice that no change around a single node makes cheaper, or the best that was found in the time."""
    until = time.monotonic() + seconds
    around = Around(problem, choice)
    since = 0
    node = 0
    while since < problem.nodes and time.monotonic() < until:
        since += 1
        if len(problem.node_costs[node]) > 1:
            more, steps = around.costs(node)
            for k in np.argsort(more)[:3]:
                if more[k] >= -0.5:
                    break
                better = around.choice_with(node, int(k), steps)
                is_within = (
                    problem.usage_limit is None or problem.peak(better) <= problem.usage_limit
                )
                if is_within and problem.cost(better) < problem.cost(around.choice):
                    around.choice = better
                    since = 0
                    break
        node = (node + 1) % problem.nodes
    return around.choice
