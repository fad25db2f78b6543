"""Whether the processes of a run are told to end, upon which all of them agree at the same call.

A signal may come to one process alone, and a host may be some steps ahead of another: it only waits where it
reads. So the processes agree by a thread in each: once any is told, each says at which call it is and holds
its next call back until all have said so, and they end at the call after the latest. JAX's own
synchronization of preemptions goes the same way (`multihost_utils.reached_preemption_sync_point`), but takes
the signal for itself.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from torch_pjrt_fsdp.checkpoint import ranks

_POLL_S = 0.2
# How long a process waits for the others to say where they are. One that is gone does not say so.
_AGREEING_S = 60.0


class Preemption:
    """Listens to a signal from the first `is_now` on; None: to none."""

    def __init__(self, number: int | None) -> None:
        self.told = False
        self._number = number
        self._calls = 0
        self._last: int | None = None  # the call at which all end, once they have agreed
        self._agreeing = threading.Lock()
        self._closed = threading.Event()
        self._before: Any = None

    def is_now(self) -> bool:
        """Whether all processes end at this call. To be asked once in each step."""
        if not self._calls:
            self._listen()
        with self._agreeing:
            self._calls += 1
            if ranks.rank_and_size()[1] == 1:
                return self.told
            return self._last is not None and self._calls >= self._last

    def close(self) -> None:
        """Have the signal do what it did before."""
        self._closed.set()
        before, self._before = self._before, None
        if before is not None and self._number is not None:
            with suppress(ValueError):  # of another thread
                signal.signal(self._number, before[0])

    def _listen(self) -> None:
        if self._number is None:
            return
        if threading.current_thread() is threading.main_thread():
            self._before = (signal.signal(self._number, self._tell),)
        rank, size = ranks.rank_and_size()
        if size > 1:
            name = ranks.all_said(os.urandom(4).hex())[0]
            store = ranks.store(f"preemption-{name}")
            agree = threading.Thread(
                target=self._agree, args=(store, rank, size), name="preemption", daemon=True
            )
            agree.start()

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self.told = True

    def _agree(self, store: Any, rank: int, size: int) -> None:
        """Wait until one of the processes is told to end, and find the call at which all do."""
        with suppress(Exception):  # the run's store has gone: so has the run
            while not (self.told or store.check(["told"])):
                if self._closed.wait(_POLL_S):
                    return
            store.set("told", "")
            with self._agreeing:
                store.set(f"at-{rank}", str(self._calls))
                keys = [f"at-{other}" for other in range(size)]
                until = time.monotonic() + _AGREEING_S
                while not store.check(keys):
                    if time.monotonic() > until or self._closed.wait(_POLL_S / 10):
                        return
                self._last = max(int(store.get(key)) for key in keys) + 1
