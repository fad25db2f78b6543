"""The end of a process that waits where nothing can be raised: in a launch, or for a store that is silent.

XLA's collectives and PyTorch's store wait in C++. Where a peer is stopped, or its host is cut off, its
connections stay open and they wait for ever. So a thread that speaks with nobody looks at how long that has
taken; past the limit it prints what is known, and ends the process with the code 75 (EX_TEMPFAIL of
sysexits.h: to be tried again), which torchrun takes for a failure as any other.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from torch_pjrt_spmd.distributed import user_lines
from torch_pjrt_spmd.distributed.board import COLLECTIVE, PAUSE_SECONDS, WAITING
from torch_pjrt_spmd.distributed.findings import elsewhere
from torch_pjrt_spmd.distributed.store_keeper import keeper

if TYPE_CHECKING:
    from torch_pjrt_spmd.distributed.health import Health

EXIT_CODE = 75
_LOOK_SECONDS = 0.5
# What waits in Python raises by itself at the limit; this much later it has not.
_GRACE_SECONDS = 2.0


def watch(health: Health, ended: threading.Event) -> None:
    """Look until the process ends. In a thread of its own."""
    looked = time.monotonic()
    while not ended.wait(_LOOK_SECONDS):
        if time.monotonic() - looked > PAUSE_SECONDS:
            ended.wait(health.limit)  # this process was stopped: what it knows is old
        looked = time.monotonic()
        text = objection(health)
        if text:
            _end(health, text)


def objection(health: Health) -> str:
    """Why the process is to end; "" if it is not."""
    phase, now = health.phase, time.monotonic()
    taken = now - phase.since
    if taken < health.limit + _GRACE_SECONDS or phase.kind not in (WAITING, COLLECTIVE):
        return ""
    quiet = now - health.heard
    if phase.kind == COLLECTIVE and not user_lines.is_launching():
        return ""  # it has failed, and the program goes on
    if health.store_fault is not None or quiet > health.limit:
        return _silent_store(health, quiet)
    if phase.kind == COLLECTIVE:
        others = [rank for rank in phase.ranks if rank != health.rank]
        found = health.lost(others) or elsewhere(health.board.seen, others, phase.doing)
        return "\n    ".join(one.text for one in found)
    return ""


def _silent_store(health: Health, quiet: float) -> str:
    text = f"The run's store has not answered for {quiet:.0f} s: {keeper(health.store)} keeps it."
    first = "\n    ".join(one.text for one in health.lost([0]))
    return f"{text}\n    {first}" if first else text


def _end(health: Health, text: str) -> None:
    phase = health.phase
    taken = time.monotonic() - phase.since
    print(
        f"PeerError: Rank {health.rank} waits in vain, for {taken:.0f} s, and cannot be interrupted.\n"
        f"  saw: {phase.doing} at {phase.line or 'no line of the program'}\n"
        f"    {text}\n"
        f"  hint: the process ends with the code {EXIT_CODE}; "
        "TORCH_PJRT_PEER_TIMEOUT=seconds has it wait longer",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_CODE)
