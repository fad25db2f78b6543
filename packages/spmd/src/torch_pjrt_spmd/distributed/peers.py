"""Whether the processes of a group are about to do the same: asked before each collective is launched.

Each says in one line what it is about to do. The first process compares and tells the others. Where they
differ, all raise, with what each was about to do; where one does not come, the others raise within a time
limit. A collective that only some processes launch would hang, or end in the middle of a write.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch_pjrt_spmd.distributed.errors import PeerError, PeersDiffer

_SAME = b"same"
# How long to wait before the store is asked again, in seconds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 50e-6, 0.02


class Peers:
    """The processes of a group, from the view of one.

    store    by which they speak; of this group alone.
    ranks    of each its number in the run.
    rank     which one this is, in the group.
    timeout  how long it waits for the others, in seconds.
    """

    def __init__(self, store: Any, ranks: Sequence[int], rank: int, timeout: float) -> None:
        self._store = store
        self.ranks = tuple(ranks)
        self.rank = rank
        self.timeout = timeout
        self._calls = 0

    def agree(self, call: str) -> None:
        """Return once all processes have said the same.

        call   what this one is about to do, in one line.

        Raises `PeersDiffer` where another says something else, `PeerError` where one does not come.
        """
        self._calls += 1
        n, store = self._calls, self._store
        if len(self.ranks) == 1:
            return
        if self.rank == 0:
            others = [f"{n}/{r}" for r in range(1, len(self.ranks))]
            self._wait(others, call)
            said = [call, *[value.decode() for value in store.multi_get(others)]]
            same = all(other == call for other in said)
            store.set(f"{n}", _SAME if same else "\n".join(said).encode())
        else:
            store.set(f"{n}/{self.rank}", call)
            self._wait([f"{n}"], call)
            answer = store.get(f"{n}")
            same = answer == _SAME
            said = answer.decode().split("\n")
        self._forget(n - 1)
        if not same:
            raise self._differ(said)

    def exchange(self, text: str) -> list[str]:
        """What each process says, in the order of ranks. All must call it at the same place."""
        self._calls += 1
        n = self._calls
        self._store.set(f"{n}/{self.rank}", text)
        keys = [f"{n}/{r}" for r in range(len(self.ranks))]
        self._wait(keys, "tell the others what it is about to do")
        return [value.decode() for value in self._store.multi_get(keys)]

    def _wait(self, keys: list[str], call: str) -> None:
        """Return once the store has the keys. The store's own waiting would log each second."""
        begun, pause = time.monotonic(), _SHORTEST_PAUSE
        while not self._has(keys, call):
            if time.monotonic() - begun > self.timeout:
                raise self._missing(keys, call)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _has(self, keys: list[str], call: str) -> bool:
        try:
            return self._store.check(keys)
        except RuntimeError as error:
            raise PeerError(
                "The process that keeps the run's store is gone.",
                saw=str(error).partition("\n")[0],
                hint=f"rank {self.ranks[self.rank]} was about to {call}",
            ) from error

    def _missing(self, keys: list[str], call: str) -> PeerError:
        if self.rank == 0:
            absent = [
                str(self.ranks[i + 1]) for i, key in enumerate(keys) if not self._store.check([key])
            ]
        else:
            absent = [str(self.ranks[0])]
        return PeerError(
            f"Rank {' and '.join(absent)} did not come within {self.timeout:g} s.",
            saw=f"rank {self.ranks[self.rank]} is about to {call}",
            expected="that all ranks of the group call the same collectives",
            hint="TORCH_PJRT_PEER_TIMEOUT=seconds, or `timeout` of the process group, has it wait longer",
        )

    def _differ(self, said: Sequence[str]) -> PeersDiffer:
        lines = [f"rank {rank}: {call}" for rank, call in zip(self.ranks, said, strict=True)]
        return PeersDiffer(
            "The ranks of a group are about to do different things.",
            saw="\n    ".join(lines),
            expected="the same collective on tensors of one shape and dtype on each rank",
        )

    def _forget(self, n: int) -> None:
        """Have the store forget an earlier call, which all have read: they have come to this one."""
        if self.rank == 0:
            if n > 1:
                self._store.delete_key(f"{n - 1}")
        elif n > 0:
            self._store.delete_key(f"{n}/{self.rank}")
