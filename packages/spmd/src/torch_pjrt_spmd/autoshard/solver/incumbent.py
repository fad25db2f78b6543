"""The best choice so far, which several threads offer to and take from, and the bound beside it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torch_pjrt_spmd.autoshard.solver.core import Core

Watcher = Callable[[float, int | None, int | None], None]  # seconds, cost, lower bound


@dataclass(slots=True)
class Clock:
    """The time of one problem, all of it, and who is told. `stop` is set from outside, to end sooner.

    began, deadline   times of `time.monotonic`. gap: what is good enough, as a share of the cost.
    """

    began: float
    deadline: float
    stop: threading.Event
    watcher: Watcher | None = None
    gap: float = 0.0

    @classmethod
    def of(
        cls,
        seconds: float,
        stop: threading.Event | None = None,
        watcher: Watcher | None = None,
        gap: float = 0.0,
    ) -> Clock:
        """One that begins now."""
        began = time.monotonic()
        return cls(began, began + seconds, stop or threading.Event(), watcher, gap)

    @property
    def seconds(self) -> float:
        return self.deadline - self.began

    @property
    def is_over(self) -> bool:
        return self.stop.is_set() or time.monotonic() >= self.deadline

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def tell(self, cost: int | None, bound: int | None) -> None:
        """A watcher that fails, as one that prints to who has gone, is told nothing more."""
        if self.watcher is not None:
            try:
                self.watcher(time.monotonic() - self.began, cost, bound)
            except Exception:
                self.watcher = None


class Incumbent:
    """`cost` and `choice` (of the variables) are None until a choice within the limits is offered."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self.core, self.clock = core, clock
        self.cost: int | None = None
        self.choice: np.ndarray | None = None
        self.bound: int | None = None
        self.least_excess: tuple[int, int, int] | None = (
            None  # over the limit, peak and time of the least so far
        )
        self.stopped = False
        self.is_search_compiled = False
        self.is_impossible = False  # proven: no choice is within the limits
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Time is up, or nothing better can be found."""
        return self.stopped or self.is_good or self.clock.is_over

    @property
    def is_good(self) -> bool:
        """Nothing costs less, or, by the bound, nothing by more than `gap`."""
        if self.cost is None or self.bound is None:
            return False
        return self.cost - self.bound <= self.clock.gap * abs(self.cost)

    def moved(self, core: Core, choice: np.ndarray | None) -> Incumbent:
        """The same choice, in the variables of a smaller core."""
        other = Incumbent(core, self.clock)
        other.is_search_compiled, other.least_excess = self.is_search_compiled, self.least_excess
        if choice is not None:
            other._take(choice)
        if self.bound is not None:
            other.bound = self.bound if other.cost is None else min(self.bound, other.cost)
        if not core.variables and other.cost is not None:
            other.bound = other.cost
        return other

    def _take(self, choice: np.ndarray) -> None:
        """Without a word: it was told before."""
        core = self.core
        over = core.usage(choice) - core.limits
        if core.is_allowed(choice) and not (over > 0).any():
            self.cost, self.choice = core.cost(choice), choice.copy()

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
        self.clock.tell(self.cost, self.bound)
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
        self.clock.tell(self.cost, self.bound)
