"""A model of the store and of time, for ranks that agree: each is a thread, of which one runs at a time.

At each use of the store it is drawn which one, and how much time passes. So thousands of interleavings are
tried, each from a number that repeats it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


class Killed(BaseException):
    """The rank ends here, without a word."""


class Scheduler:
    """Runs threads one at a time, and has the time.

    chance   draws who is next, and how long each step takes.
    raising  what a rank raises, after so many further uses of the store.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self._turns: dict[int, threading.Semaphore] = {}
        self._until: dict[int, float] = {}
        self._done = threading.Semaphore(0)
        self.raising: dict[int, tuple[int, BaseException]] = {}
        self._rank = threading.local()

    def run(self, ranks: list[Callable[[], None]]) -> None:
        """Run each rank's function to its end."""
        for rank, function in enumerate(ranks):
            self._turns[rank], self._until[rank] = threading.Semaphore(0), 0.0
            threading.Thread(target=self._one, args=(rank, function), daemon=True).start()
        while self._turns:
            ready = [r for r, until in self._until.items() if until <= self.now]
            if not ready:
                self.now = min(self._until.values())
                continue
            self._turns[self.chance.choice(ready)].release()
            assert self._done.acquire(timeout=20), "a rank never gave its turn back"

    def _one(self, rank: int, function: Callable[[], None]) -> None:
        self._rank.number = rank
        self._turns[rank].acquire()
        try:
            function()
        finally:
            del self._turns[rank], self._until[rank]
            self._done.release()

    def step(self, seconds: float = 0.0) -> None:
        """Let others run: after that much time, or a moment."""
        rank = self._rank.number
        self._until[rank] = self.now + seconds + self.chance.choice((0, 0, 0.001, 0.01))
        turn = self._turns[rank]
        self._done.release()
        turn.acquire()
        if (coming := self.raising.pop(rank, None)) is not None:
            if coming[0] == 0:
                raise coming[1]
            self.raising[rank] = coming[0] - 1, coming[1]

    # As the module `time`.
    sleep = step

    def monotonic(self) -> float:
        return self.now


class Store:
    """As PyTorch's store: each use is one step, and happens at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._step, self.keys = scheduler.step, {}

    def set(self, key: str, value: str) -> None:
        self._step()
        self.keys[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._step()
        return self.keys[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._step()
        return [self.keys[key] for key in keys]

    def check(self, keys: list[str]) -> bool:
        self._step()
        return all(key in self.keys for key in keys)

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        self._step()
        if self.keys.get(key, b"").decode() == expected:
            self.keys[key] = value.encode()
        return self.keys.get(key, expected.encode())

    def delete_key(self, key: str) -> bool:
        self._step()
        return self.keys.pop(key, None) is not None
