"""A part of a store that nobody has written to: processes that are started again find what the first left.

A launcher that restarts processes (`torchrun --max-restarts`) keeps its store, and does not tell one attempt
from the next. So the first process names each attempt anew. Whoever joins takes a ticket that nobody had, and
the first process answers all tickets: what it answers to this one cannot be of an earlier attempt.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from torch_pjrt_spmd.distributed.errors import PeerError

_PAUSE_SECONDS = 0.01


def new_attempt(store: Any, rank: int, size: int, timeout: timedelta | None = None) -> str:
    """The name of this attempt, the same on all ranks, and another each time. All of them must call it.

    timeout   how long to wait for the others; the store's own unless given.

    Raises `PeerError` where one does not come in time.
    """
    table = PrefixStore("torch_pjrt/attempts", store)
    last = time.monotonic() + (timeout or store.timeout).total_seconds()
    if rank == 0:
        return _named(table, size, last)
    ticket = table.add(f"tickets/{rank}", 1)
    answer = f"answers/{rank}/{ticket}"
    _wait(lambda: table.check([answer]), last, lambda: f"rank {rank} waits for rank 0")
    name = table.get(answer).decode()
    table.set(f"{name}/{rank}", "")
    return name


def _named(table: Any, size: int, last: float) -> str:
    """Answer tickets until all have come."""
    name, answered = uuid.uuid4().hex[:12], dict.fromkeys(range(1, size), 0)

    def all_have_come() -> bool:
        for rank, until in answered.items():
            count = table.add(f"tickets/{rank}", 0)
            for ticket in range(until + 1, count + 1):
                table.set(f"answers/{rank}/{ticket}", name)
            answered[rank] = count
        return table.check([f"{name}/{rank}" for rank in answered])

    def missing() -> str:
        absent = [str(rank) for rank in answered if not table.check([f"{name}/{rank}"])]
        return f"rank 0 waits for rank {', '.join(absent)}"

    _wait(all_have_come, last, missing)
    return name


def _wait(is_there: Callable[[], bool], last: float, words: Callable[[], str]) -> None:
    while not is_there():
        if time.monotonic() > last:
            raise PeerError(
                "Not all processes of the run have come in time.",
                saw=words(),
                hint="`timeout` of `init_process_group` has it wait longer",
            )
        time.sleep(_PAUSE_SECONDS)
