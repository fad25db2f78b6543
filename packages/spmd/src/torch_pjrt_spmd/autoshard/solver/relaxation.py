"""The Lagrangian relaxation: memory has a price at each checkpoint instead of a limit.

At prices p >= 0, the least of `cost + p * (usage - limit)` over all choices is at most the cost of any choice
within the limits. Message passing bounds that least from below, and gives choices that are nearly best at
these prices. The prices rise where those need too much memory, and fall where they leave some: subgradient
ascent with Polyak's step (Held, Wolfe and Crowder, "Validation of subgradient optimization", 1974).
"""

from __future__ import annotations

import numpy as np

from torch_pjrt_spmd.autoshard.solver.arrays import Arrays, energy_of, price_costs, usage_of
from torch_pjrt_spmd.autoshard.solver.core import NEVER
from torch_pjrt_spmd.autoshard.solver.sweeps import back, forth

SHORTEST = 5e-3  # steps, as a share of Polyak's; then it starts over from the best prices, in the other way
INERTIA = 0.7  # of the other way: how much of the last direction a step keeps
PATIENCE = 20  # steps without a better bound after which steps become shorter
SWEEPS = 15  # at fixed prices, before strategies are called useless
SETTLING = 5  # sweeps before the prices move first


class Relaxation:
    """`step` after `step`: `bound` and the `prices` that gave it, and the choice and usage that each met."""

    def __init__(self, arrays: Arrays, prices: np.ndarray | None = None) -> None:
        self.arrays = arrays
        variables = len(arrays.offsets) - 1
        sides = [np.bincount(arrays.ends[:, side], minlength=variables) for side in (0, 1)]
        self._weights = 1.0 / np.maximum(1, np.maximum(*sides))
        sizes = np.diff(arrays.offsets)
        self._messages = np.zeros(int(sizes[arrays.ends].sum()))
        self._now = np.zeros(len(arrays.limits)) if prices is None else prices.copy()
        self._stride, self._waited, self._steps = 1.0, 0, 0
        self._inertia, self._course = 0.0, self._now * 0.0
        self._excess = np.zeros(len(arrays.costs))
        self.prices = self._now.copy()
        self.bound = -np.inf
        self.choice = np.zeros(variables, np.int64)
        self.usage = np.zeros(len(arrays.limits))
        self.energy = np.inf
        self.rounding: np.ndarray | None = None  # the last choice without forbidden pairs, a copy
        self.waited_for_bound = 0  # steps since the bound rose

    def step(self, known: float) -> None:
        """One sweep forth and back at the present prices, and new prices; `known`: the least cost known."""
        arrays = self.arrays
        costs = arrays.costs + price_costs(arrays, self._now)
        forth(arrays, costs, self._weights, self._messages, self.choice)
        bound = back(arrays, costs, self._weights, self._messages, self._excess)
        bound -= float((self._now * arrays.limits).sum())
        self.usage = usage_of(arrays, self.choice)
        self.energy = energy_of(arrays, self.choice)
        self._steps += 1
        self.waited_for_bound += 1
        if self.energy < NEVER or self.rounding is None:
            self.rounding = self.choice.copy()
        if bound > self.bound + 1e-6 * abs(self.bound) or not np.isfinite(self.bound):
            self._waited = self.waited_for_bound = 0
        else:
            self._waited += 1
        if bound > self.bound:
            self.bound, self.prices = bound, self._now.copy()
        if self._waited > PATIENCE:
            self._stride, self._waited = self._stride * 0.7, 0
            if self._stride < SHORTEST:
                self._stride, self._now = 0.3, self.prices.copy()
                self._inertia, self._course = INERTIA - self._inertia, self._course * 0.0
        if self._steps > SETTLING:
            self._move(bound, known)

    def useless(self, known: float) -> np.ndarray:
        """Strategies that every choice costs more than `known` with; bool [positions]."""
        arrays = self.arrays
        costs = arrays.costs + price_costs(arrays, self.prices)
        bound = -np.inf
        for sweep in range(SWEEPS):
            forth(arrays, costs, self._weights, self._messages, self.choice)
            after = back(arrays, costs, self._weights, self._messages, self._excess)
            if sweep < SWEEPS - 1:
                bound = after
        bound -= float((self.prices * arrays.limits).sum())
        return bound + self._excess > known + self.error(bound)

    def error(self, bound: float) -> float:
        """How far rounding of floats may have moved a bound: ample."""
        arrays = self.arrays
        largest = np.abs(arrays.tables[arrays.tables < NEVER]).max(initial=1.0)
        largest = max(float(largest), float(np.abs(arrays.costs).max(initial=1.0)))
        return 4e-16 * len(arrays.costs) * largest + 1e-12 * abs(bound)

    def _move(self, bound: float, known: float) -> None:
        over = self.usage - self.arrays.limits
        slope = np.where((over > 0) | (self._now > 0), over, 0.0)
        if self._inertia:
            self._course = (1 - self._inertia) * slope + self._inertia * self._course
            slope = np.where((self._course > 0) | (self._now > 0), self._course, 0.0)
        square = float((slope * slope).sum())
        if square > 0:
            guess = self.bound + max(0.1 * abs(self.bound), 1.0)
            target = min(known, guess) if np.isfinite(known) else guess
            length = self._stride * max(target - bound, 1e-3 * abs(target), 1e-6) / square
            self._now = np.maximum(0.0, self._now + length * slope)
