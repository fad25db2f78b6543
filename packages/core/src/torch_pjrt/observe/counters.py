"""Counters that are always on: plain attributes, cheap enough to bump in any path but one operator's."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from torch_pjrt.observe import phases
from torch_pjrt.session import session


@dataclass(slots=True)
class Counters:
    """What this process did so far. Times (`_s`) are seconds of host time, bytes are of payload.

    operators     in programs, each time that one was run.
    programs_run  how often programs were launched; replays: how often a captured step was.
    programs_compiled, programs_loaded, programs_given_back    compiled, taken from disk, given back for room.
    not_kept      why programs were not written to disk.
    loops         of programs that were made: layers that repeat, as one loop each.
    syncs         by cause; fallbacks: operators that ran on the CPU, by name; islands: parts of compiled
                  functions that run uncompiled, by cause.
    uploads, uploaded_bytes, downloads, downloaded_bytes    from the host and to it.
    donated       inputs whose memory programs took.
    stacks_made, elements_taken    what rolled loops take as one array, and what was taken out of one.
    lower_s, compile_s, load_s, save_s    of making programs, and of the disk.
    sync_s, launch_s, upload_s, download_s, fallback_s    of running them.

        >>> before = counters.uploads
        >>> x = torch.ones(3).to("pjrt")
        >>> counters.uploads - before
        1
    """

    operators: int = 0
    programs_compiled: int = 0
    programs_loaded: int = 0
    programs_given_back: int = 0
    not_kept: Counter[str] = field(default_factory=Counter)
    programs_run: int = 0
    loops: int = 0
    replays: int = 0
    syncs: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    islands: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    uploaded_bytes: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    donated: int = 0
    stacks_made: int = 0
    elements_taken: int = 0
    lower_s: float = 0.0
    compile_s: float = 0.0
    load_s: float = 0.0
    save_s: float = 0.0
    sync_s: float = 0.0
    launch_s: float = 0.0
    upload_s: float = 0.0
    download_s: float = 0.0
    fallback_s: float = 0.0

    def timed(self, name: str) -> _Timing:
        """A context manager: adds the time that the block takes to the counter `name`."""
        return _Timing(self, name)

    def forget(self) -> None:
        """All counters back to zero."""
        fresh = Counters()
        for f in fields(self):
            setattr(self, f.name, getattr(fresh, f.name))


class CountersOfThread(threading.local):
    """What this thread did so far: what a captured step asks, whatever other threads do."""

    replays: int = 0
    fallbacks: int = 0


class _Timing:
    """A block whose time is added to a counter, and which profilers see, where there are any."""

    __slots__ = ("counters", "name", "phase", "start")

    def __init__(self, counters: Counters, name: str) -> None:
        self.counters = counters
        self.name = name

    def __enter__(self) -> None:
        self.start = time.perf_counter()
        self.phase = phases.phase(self.name) if phases.is_watched() else None
        if self.phase is not None:
            self.phase.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.phase is not None:
            self.phase.__exit__(*error)
        taken = time.perf_counter() - self.start
        setattr(self.counters, self.name, getattr(self.counters, self.name) + taken)


counters = session.own("counters", Counters())
of_thread = session.own("counters of a thread", CountersOfThread())
