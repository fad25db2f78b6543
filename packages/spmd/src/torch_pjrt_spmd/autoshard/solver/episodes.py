"""How the search is used: episodes, each from a start of its own until it finds nothing better for a while.

A start is what rounding the relaxation gave, brought within the limits, or the best choice known, after some
trees were chosen at costs with noise.
"""

from __future__ import annotations

import time

import numpy as np

from torch_pjrt_spmd.autoshard.solver.arrays import Arrays, energy_of, price_costs, usage_of
from torch_pjrt_spmd.autoshard.solver.core import NEVER
from torch_pjrt_spmd.autoshard.solver.incumbent import Incumbent
from torch_pjrt_spmd.autoshard.solver.relaxation import Relaxation
from torch_pjrt_spmd.autoshard.solver.search import search

LOOK_S = 0.2  # about how long the search goes on between two looks at the clock
STALLED = 3  # looks without a gain after which an episode ends
REPAIRS = 14
GAIN = 1e-6  # what counts as one, as a share of the cost, where the choice is the best known
GAIN_OF_OTHERS = 1e-4


class Episodes:
    """The search of one thread."""

    def __init__(
        self, arrays: Arrays, relaxation: Relaxation, incumbent: Incumbent, seed: int
    ) -> None:
        self.arrays, self.relaxation, self.incumbent = arrays, relaxation, incumbent
        self._random = np.random.default_rng(seed)
        self._most = len(arrays.offsets) - 1
        self._rounds = 16

    def compile(self) -> None:
        """Compile what is compiled, which is seconds of work on a machine that has not done so."""
        nowhere = np.zeros(self._most, np.int64)
        search(
            self.arrays,
            self.arrays.costs,
            nowhere,
            usage_of(self.arrays, nowhere),
            nowhere,
            0,
            1,
            0.0,
            0,
        )

    def run(self) -> None:
        """One episode; its best choice is offered."""
        incumbent, arrays = self.incumbent, self.arrays
        rounding, known = self.relaxation.rounding, incumbent.choice
        if known is None or (rounding is not None and self._random.random() < 0.5):
            choice = None if rounding is None else self.repaired(rounding.copy())
        else:
            choice = self._shaken(known.copy())
        if choice is None:
            time.sleep(0.01)
            return
        cost, stalled = energy_of(arrays, choice), 0
        while stalled < STALLED and not incumbent.is_over:
            best = choice.copy()
            gain = self._look(arrays, self.relaxation.prices, choice, best)
            cost -= gain
            incumbent.offer(best)
            is_best = incumbent.cost is None or cost + incumbent.core.constant <= incumbent.cost
            stalled = 0 if gain > (GAIN if is_best else GAIN_OF_OTHERS) * abs(cost) else stalled + 1

    def repaired(self, choice: np.ndarray) -> np.ndarray | None:
        """A choice within the limits, near this one: memory that is too much used has a price that grows."""
        arrays = self.arrays
        priced = arrays.costs + price_costs(arrays, self.relaxation.prices)
        # Where nothing is within the limits, prices grow until no strategy is worth its memory.
        affordable = priced[priced < NEVER]
        usual = float(np.median(affordable)) if len(affordable) else 0.0
        worth = 1e-3 * max(1.0, usual * self._most)
        for _ in range(REPAIRS):
            usage = usage_of(arrays, choice)
            over = usage - arrays.limits
            if energy_of(arrays, choice) < NEVER and not (over > 0).any():
                self.incumbent.offer(choice)
                return choice
            if self.incumbent.is_over:
                return None
            costs = priced
            if (over > 0).any():
                lack = price_costs(arrays, np.maximum(over, 0.0) / np.maximum(over, 0.0).max())
                costs = priced + worth / np.maximum(over, 0.0).max() * lack
            eased = arrays._replace(costs=costs, limits=np.maximum(arrays.limits, usage))
            self._look(eased, self.relaxation.prices * 0.0, choice, choice.copy())
            worth *= 4
        self.incumbent.offer(choice)  # which notes how far from the limit it is
        return None

    def _shaken(self, choice: np.ndarray) -> np.ndarray:
        arrays = self.arrays
        noise = (
            10.0 ** self._random.uniform(-5, -2)
            * energy_of(arrays, choice)
            / max(1.0, self._most**0.5)
        )
        costs = arrays.costs + noise * self._random.random(len(arrays.costs))
        search(
            arrays._replace(costs=costs), arrays.costs * 0.0, choice, usage_of(arrays, choice), choice.copy(),
            int(self._random.integers(1, 40)), self._most, 0.0, self._seed(),
        )  # fmt: skip
        return choice

    def _look(
        self, arrays: Arrays, prices: np.ndarray, choice: np.ndarray, best: np.ndarray
    ) -> float:
        """Search for about `LOOK_S`; `choice` goes on and `best` is written. Gives the gain."""
        began = time.monotonic()
        _, least = search(
            arrays, price_costs(arrays, prices), choice, usage_of(arrays, choice), best,
            self._rounds, self._most, 0.0, self._seed(),
        )  # fmt: skip
        took = time.monotonic() - began
        self._rounds = (
            int(
                np.clip(self._rounds * LOOK_S / max(took, 1e-4), self._rounds / 4, self._rounds * 4)
            )
            + 1
        )
        return -least

    def _seed(self) -> int:
        return int(self._random.integers(2**31))
