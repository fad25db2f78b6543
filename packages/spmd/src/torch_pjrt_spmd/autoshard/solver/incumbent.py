"""The best choice so far, which several threads offer to and take from, and the bound beside it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import numpy as np

from torch_pjrt_spmd.autoshard.solver.core import Core

Watcher = Callable[[float, int | None, int | None], None]  # seconds, cost, lower bound


class Incumbent:
    """`cost` and `choice` (of the variables) are None until a choice within the limits is offered."""

    def __init__(
        self, core: Core, began: float, deadline: float, watcher: Watcher | None, gap: float = 0.0
    ) -> None:
        self.core, self.began, self.deadline, self.gap = core, began, deadline, gap
        self.seconds = deadline - began
        self.cost: int | None = None
        self.choice: np.ndarray | None = None
        self.bound: int | None = None
        self.least_excess: tuple[int, int, int] | None = (
            None  # over the limit, peak and time of the least so far
        )
        self.stopped = False
        self.is_search_compiled = False
        self.is_impossible = False  # proven: no choice is within the limits
        self._lock, self._watcher = threading.Lock(), watcher

    @property
    def is_over(self) -> bool:
        """Time is up, or nothing better can be found."""
        return self.stopped or self.is_good or time.monotonic() >= self.deadline

    @property
    def is_good(self) -> bool:
        """Nothing costs less, or, by the bound, nothing by more than `gap`."""
        if self.cost is None or self.bound is None:
            return False
        return self.cost - self.bound <= self.gap * abs(self.cost)

    def moved(self, core: Core, choice: np.ndarray) -> Incumbent:
        """The same choice, in the variables of a smaller core."""
        other = Incumbent(core, self.began, self.deadline, None, self.gap)
        other.is_search_compiled, other.least_excess = self.is_search_compiled, self.least_excess
        other.offer(choice)
        other._watcher = self._watcher
        if self.bound is not None and other.cost is not None:
            other.bound = min(self.bound, other.cost) if core.variables else other.cost
        return other

    def offer(self, choice: np.ndarray) -> bool:
        """Take a choice if it is within the limits, allowed, and better; all in exact integers."""
        core = self.core
        if not core.is_allowed(choice):
            return False
        usage = core.usage(choice)
        over = usage - core.limits
        if len(over) and over.max() > 0:
            worst = int(over.argmax())
            with self._lock:
                if self.least_excess is None or over[worst] < self.least_excess[0]:
                    self.least_excess = int(over[worst]), worst, int(core.checkpoints[worst])
            return False
        cost = core.cost(choice)
        with self._lock:
            if self.cost is not None and cost >= self.cost:
                return False
            self.cost, self.choice = cost, choice.copy()
        self._tell()
        return True

    def raise_bound(self, bound: float, slack: float) -> None:
        """Note a lower bound that was computed in floats with an error of up to `slack`."""
        if not math.isfinite(bound):
            return
        whole = math.ceil(bound - slack) + self.core.constant
        with self._lock:
            if self.bound is not None and whole <= self.bound:
                return
            self.bound = whole if self.cost is None else min(whole, self.cost)
        self._tell()

    def _tell(self) -> None:
        if self._watcher is not None:
            self._watcher(time.monotonic() - self.began, self.cost, self.bound)
