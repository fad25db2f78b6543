"""What this process tells the others of itself, and what it knows of them: two threads beside the program.

One posts to the status board (`board.py`) each second, and looks at the posts of those whom this process
waits for. It speaks with the store by a connection of its own, and may hang with it. The other speaks with
nobody, and ends the process where nothing else can (`watchdog.py`).
"""

from __future__ import annotations

import atexit
import os
import socket
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from torch_pjrt.extend import add_program_hooks, client
from torch_pjrt_spmd.distributed import findings, same_host, user_lines
from torch_pjrt_spmd.distributed.board import (
    COLLECTIVE,
    COMPILING,
    COMPUTING,
    ENDED,
    FAILED,
    PAUSE_SECONDS,
    WAITING,
    Board,
    Post,
    underlying,
)
from torch_pjrt_spmd.distributed.local_runs import note_run
from torch_pjrt_spmd.distributed.store_keeper import keeper
from torch_pjrt_spmd.distributed.watchdog import watch

_POST_SECONDS = 1.0
_LOOK_SECONDS = 0.3
# How long who keeps the store stays at its end, so that the others learn of it.
_FAREWELL_SECONDS = 3.0
# Steps of which the median is told.
_STEPS = 20


@dataclass(frozen=True, slots=True)
class Phase:
    """What the program does, since when by the monotonic clock: see `board.Post`."""

    kind: str
    doing: str
    line: str
    ranks: tuple[int, ...]
    since: float


class Health:
    """This process, as a part of its run. There is one from the first process group on.

    limit       how long others are waited for, in seconds.
    heard       when the store has last answered, by the monotonic clock.
    look_after  called now and then, by a thread of its own, with the board: `group.py` puts a function here.
    store_fault what the store failed with, once it is gone.
    """

    def __init__(self, store: Any, rank: int, size: int, limit: float) -> None:
        self.rank, self.size, self.limit = rank, size, limit
        self.store = store  # what it keeps is kept with it: a later group of this process needs it
        self.board = Board.make(store, size)
        self.heard = time.monotonic()
        self.store_fault: str | None = None
        self.look_after: Callable[[Board], None] | None = None
        self._began = time.monotonic()
        self._phases: dict[int, Phase] = {}
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._step = 0
        self._times: deque[tuple[float, float]] = deque(maxlen=_STEPS)
        self._stepped: float | None = None
        self._waited = 0.0
        self._launches = 0
        self._pid = os.getpid()
        self._end = threading.Event()
        self._lock = threading.Lock()
        pid = os.getpid()
        host, began = socket.gethostname(), same_host.began(pid)
        self._post = Post(rank, host, pid, same_host.host_id(), began)
        self._error, self._has_failed = "", False
        self._because: list[int] = []
        self._threads: list[threading.Thread] = []

    # What the program does.

    @property
    def phase(self) -> Phase:
        """What the thread does that has waited longest; where none does, the program computes."""
        phases = list(self._phases.values())
        if not phases:
            return Phase(COMPUTING, "", "", (), self._began)
        return min(phases, key=lambda phase: phase.since)

    def _enter(self, kind: str, doing: str, ranks: Sequence[int]) -> None:
        line = user_lines.current_line() or ""
        self._phases[threading.get_ident()] = Phase(
            kind, doing, line, tuple(ranks), time.monotonic()
        )

    def _leave(self) -> Phase | None:
        self._began = time.monotonic()
        return self._phases.pop(threading.get_ident(), None)

    @contextmanager
    def waiting(self, doing: str, ranks: Sequence[int]) -> Iterator[None]:
        """While the block runs, this process waits for the others of these ranks."""
        begun = time.monotonic()
        self._enter(WAITING, doing, ranks)
        try:
            yield
        finally:
            self._waited += time.monotonic() - begun
            self._leave()

    def entering(self, doing: str, ranks: Sequence[int]) -> None:
        """From now on, to the end of the next launch, this process is in a collective."""
        self._enter(COLLECTIVE, doing, ranks)

    def left(self) -> None:
        """The collective has been launched."""
        self._leave()

    def launched(self, program: Any) -> None:
        self._launches += 1
        self.left()

    def stepped(self, optimizer: Any, *rest: Any) -> None:
        """An optimizer has made a step. Of several, the one that has made the most counts."""
        n = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if n <= self._step:
            return
        self._step = n
        now = time.monotonic()
        if self._stepped is not None:
            self._times.append((now - self._stepped, now - self._stepped - self._waited))
        self._stepped, self._waited = now, 0.0

    # What the others are told.

    def now(self) -> Post:
        """What is to be told now."""
        phase, times = self.phase, list(self._times)
        kind, line = phase.kind, phase.line or user_lines.main_line() or ""
        if kind == COLLECTIVE and not user_lines.is_launching():
            kind, line = COMPUTING, user_lines.main_line() or ""
        if kind != WAITING and user_lines.is_compiling():
            kind = COMPILING
        if self._has_failed:
            kind = FAILED
        return replace(
            self._post,
            phase=kind,
            time=time.time(),
            since_s=round(time.monotonic() - phase.since, 3),
            doing=phase.doing,  # of one that computes: what it has agreed on, and is not in
            line=line,
            ranks=list(phase.ranks),
            step=self._step,
            launches=self._launches,
            step_s=statistics.median(s for s, _ in times) if times else None,
            own_s=statistics.median(own for _, own in times) if times else None,
            device_bytes=_device_bytes(),
            host_bytes=same_host.resident_bytes(),
            error=self._error,
            because=self._because,
        )

    def put(self, post: Post) -> None:
        """Post this."""
        with self._lock:
            self._post.beat += 1
            self.board.put(replace(post, beat=self._post.beat))

    def failed(self, error: BaseException) -> None:
        """Tell the others that this process ends by an error. At once; nothing is raised."""
        if os.getpid() != self._pid or self._end.is_set():
            return
        self.note(error)
        self._has_failed = True
        with suppress(RuntimeError):
            self.put(self.now())

    def join_again(self, limit: float) -> None:
        """Another process group: what a launcher has caught before is over."""
        self.limit = max(limit, self.limit)
        self._has_failed = False

    def note(self, error: BaseException) -> None:
        """Keep an error as the last of this process."""
        text = " ".join(str(error).split())
        self._error = f"{type(error).__name__}: {text}"[:600]
        self._because = list(getattr(error, "ranks", ()))

    # What is known of the others.

    def lost(self, ranks: Sequence[int]) -> list[findings.Finding]:
        """Those that are gone, by what was seen last; not this process."""
        return findings.lost(self.board.seen, [r for r in ranks if r != self.rank], self.limit)

    def posts(self) -> list[Post]:
        """What each rank has said last, read now. Raises `RuntimeError` where the store is gone."""
        board = Board(self.board.store.clone(), self.size)
        board.look(range(self.size))
        return [board.seen[rank].post for rank in sorted(board.seen)]

    def find_lost(self, ranks: Sequence[int], within: float = 5.0) -> list[findings.Finding]:
        """As `lost`, for a process of which one must be gone: looks for some seconds.

        Without the store, too: who is being killed closes its connections, and is there for a while yet.
        """
        others = [r for r in ranks if r != self.rank]
        begun = time.monotonic()
        with self.waiting("know who is gone", ranks):  # the thread looks, then
            while time.monotonic() - begun < within and not self.lost(others):
                time.sleep(0.1)
        return self.lost(others) or findings.silent(self.board.seen, others, 2.5 * _POST_SECONDS)

    @property
    def has_failed(self) -> bool:
        """Whether this process ends by an error."""
        return self._has_failed

    # Threads.

    def start(self) -> None:
        """Post once, then from a thread; have hooks call this object."""
        self.put(self.now())
        self.board.look(range(self.size) if self.size <= 64 else [0])
        self._threads = [threading.Thread(target=self._beat, name="torch_pjrt health", daemon=True)]
        self._threads.append(
            threading.Thread(
                target=watch, args=(self, self._end), name="torch_pjrt watchdog", daemon=True
            )
        )
        for thread in self._threads:
            thread.start()

    def _beat(self) -> None:
        posted, looked = 0.0, time.monotonic()
        while not self._end.wait(_LOOK_SECONDS):
            phase = self.phase
            if time.monotonic() - looked > PAUSE_SECONDS:
                self.board.forgive()
            looked = time.monotonic()
            try:
                if time.monotonic() - posted > _POST_SECONDS - _LOOK_SECONDS / 2:
                    self.put(self.now())
                    posted = time.monotonic()
                if phase.kind in (WAITING, COLLECTIVE):
                    self.board.look(self._of_interest(phase))
                elif time.monotonic() - self.heard > 10 * _POST_SECONDS:
                    self.board.look([self.rank])  # `put` alone does not say whether the store lives
                if self.look_after is not None:
                    self.look_after(self.board)
                self.heard = time.monotonic()
            except (RuntimeError, ValueError) as error:
                self.store_fault = str(error).partition("\n")[0]
                return

    def _of_interest(self, phase: Phase) -> set[int]:
        """The ranks of the collective, and those that they wait for."""
        found = set(phase.ranks)
        for rank in phase.ranks:
            if (one := self.board.seen.get(rank)) is not None:
                found.update(one.post.ranks, one.post.because)
        return found

    def end(self) -> None:
        """Called when the process ends: say so, and, where it keeps the store, let the others hear it."""
        if os.getpid() != self._pid or self._end.is_set():
            return
        self._end.set()
        for thread in self._threads:
            thread.join(2.0)
        if self.store_fault is not None or any(t.is_alive() for t in self._threads):
            return
        with suppress(RuntimeError):
            post = self.now()
            self.put(replace(post, phase=FAILED if self._has_failed else ENDED))
            if self.keeps_store:
                self._say_farewell()

    def _say_farewell(self) -> None:
        last = time.monotonic() + _FAREWELL_SECONDS
        others = [r for r in range(self.size) if r != self.rank]
        while time.monotonic() < last:
            self.board.look(others)
            if len(self.lost(others)) == len(others):
                return
            time.sleep(0.05)

    @property
    def keeps_store(self) -> bool:
        """Whether the run's store ends with this process: torchrun's is kept by its agent."""
        return self.rank == 0 and keeper(self.store) == "rank 0"


class _Own:
    """This process's, once it is part of a run."""

    health: Health | None = None


_own = _Own()


def health() -> Health | None:
    """What this process tells of itself; None before its first process group of several ranks."""
    return _own.health


def report_failure(error: BaseException) -> None:
    """Tell the other ranks that this process ends by an error.

    What reaches the interpreter is told by itself. This is for launchers that catch what a function raises,
    to pass it on in another way. Does nothing for a process alone; raises nothing.
    """
    if _own.health is not None:
        _own.health.failed(error)


def start(store: Any, rank: int, size: int, limit: float) -> None:
    """Be part of a run's status board. The first call of a process counts, and those of other limits."""
    if size < 2:
        return
    if _own.health is not None:
        _own.health.join_again(limit)
        return
    _own.health = Health(store, rank, size, limit)
    _hook()
    _own.health.start()
    note_run(underlying(store))


@cache
def _hook() -> None:
    """Have the interpreter and PyTorch tell of errors, steps and the end."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    before, before_of_threads = sys.excepthook, threading.excepthook

    def on_error(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if (own := _own.health) is not None:
            own.failed(error)
        before(kind, error, trace)

    def on_error_of_thread(arguments: Any) -> None:
        if (own := _own.health) is not None and arguments.exc_value is not None:
            own.note(arguments.exc_value)
        before_of_threads(arguments)

    sys.excepthook, threading.excepthook = on_error, on_error_of_thread
    register_optimizer_step_post_hook(_stepped)
    add_program_hooks(after_launch=_launched)
    atexit.register(_ended)


def _stepped(*given: Any) -> None:
    if (own := _own.health) is not None:
        own.stepped(*given)


def _launched(program: Any) -> None:
    if (own := _own.health) is not None:
        own.launched(program)


def _ended() -> None:
    if (own := _own.health) is not None:
        own.end()


def _device_bytes() -> int | None:
    try:
        return (client().chip.memory_stats() or {}).get("bytes_in_use")
    except Exception:  # many devices keep no statistics, each says so in its own way
        return None
