"""A first choice in plain numpy: while the search is still being compiled, or where it has failed.

One variable after the other takes the strategy that costs least beside those chosen before, of those that
leave each neighbour some. Where that needs too much memory, memory has a price there, which grows, and all is
chosen again; where some neighbour is left without a strategy, its turn comes first the next time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torch_pjrt_spmd.autoshard.solver.core import Core
from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN

PASSES = 60
GROWTH = 2.5  # of the price of memory, from pass to pass


class PlainStart:
    """Passes over a core; each gives a choice, which may be too large or have forbidden pairs."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.sizes = core.sizes()
        self._near: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(core.variables)]
        known: dict[tuple[int, int], np.ndarray] = {}
        for (v, w), begin in zip(core.ends.tolist(), core.edge_tables.tolist(), strict=True):
            rows, columns = int(self.sizes[v]), int(self.sizes[w])
            if (begin, rows) not in known:
                raw = core.tables[begin : begin + rows * columns].reshape(rows, columns)
                known[begin, rows] = np.where(raw >= FORBIDDEN, np.inf, raw.astype(float))
            self._near[v].append((w, known[begin, rows]))
            self._near[w].append((v, known[begin, rows].T))
        of_member = np.repeat(np.arange(core.variables), np.diff(core.member_offsets))
        counts = self.sizes[of_member]
        firsts = np.repeat(core.offsets[of_member] - np.cumsum(counts) + counts, counts)
        self._counts, self._positions = counts, firsts + np.arange(int(counts.sum()))
        usages = np.repeat(core.member_positions - np.cumsum(counts) + counts, counts)
        self._usages = core.usages[usages + np.arange(int(counts.sum()))].astype(float)
        self._first: dict[int, None] = {}  # whose turn comes first
        self._prices = np.zeros(len(core.limits))

    def choices(self, is_over: Callable[[], bool]) -> np.ndarray | None:
        """The first choice within the limits and without forbidden pairs; None where no pass finds any."""
        core = self.core
        spans = [
            float(np.ptp(core.costs[a:b]))
            for a, b in zip(core.offsets[:-1], core.offsets[1:], strict=True)
        ]
        worth = 1e-4 * max(1.0, sum(spans))
        for _ in range(PASSES):
            choice = self._chosen(is_over)
            if choice is None:
                return None
            over = np.maximum(core.usage(choice) - core.limits, 0)
            if len(over) and over.max() > 0:
                self._prices += worth / float(over.max()) ** 2 * over
                worth *= GROWTH
            elif core.is_allowed(choice):
                return choice
        return None

    def _chosen(self, is_over: Callable[[], bool]) -> np.ndarray | None:
        core = self.core
        costs = core.costs.astype(float) + self._memory_costs()
        sums = [costs[a:b].copy() for a, b in zip(core.offsets[:-1], core.offsets[1:], strict=True)]
        choice = np.full(core.variables, -1, np.int64)
        order = [*self._first, *(v for v in range(core.variables) if v not in self._first)]
        for at, v in enumerate(order):
            if at % 256 == 0 and is_over():
                return None
            later = [(w, table) for w, table in self._near[v] if choice[w] < 0]
            k = self._best(v, sums, later)
            choice[v] = k
            for w, table in later:
                left = sums[w] + table[k]
                if np.isfinite(left).any():
                    sums[w] = left
                else:  # a forbidden pair: this pass fails, the next one begins here
                    self._first = {w: None, v: None, **self._first}
        return choice

    def _best(self, v: int, sums: list[np.ndarray], later: list[tuple[int, np.ndarray]]) -> int:
        own = sums[v]
        for k in np.argsort(own, kind="stable").tolist():
            if not np.isfinite(own[k]):
                break
            if all(np.isfinite(sums[w] + table[k]).any() for w, table in later):
                return k
        return int(own.argmin())

    def _memory_costs(self) -> np.ndarray:
        """What the memory of each strategy costs at the prices; float64 [positions]."""
        core = self.core
        cumulated = np.concatenate([[0.0], np.cumsum(self._prices)])
        of_members = cumulated[core.member_spans[:, 1]] - cumulated[core.member_spans[:, 0]]
        costs = np.repeat(of_members, self._counts) * self._usages
        return np.bincount(self._positions, costs, len(core.costs))
