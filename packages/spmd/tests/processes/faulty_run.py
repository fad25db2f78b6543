"""A run of five processes of which one goes wrong, while each of the others is somewhere else.

    python faulty_run.py HOW FAULTY        one process of it, by the variables of `env://`

The others, in the order of ranks: one waits for the faulty one before a collective, one is in a collective
with it, one computes alone, one is at its end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

PLACES = ("waiting", "collective", "alone", "exit")
SIZE = 1 + len(PLACES)
# How long the one that computes alone does so, beyond the time limit, in seconds.
ALONE_SECONDS = 3.0


class Mishap(Exception):
    """What the faulty process raises."""


def place_of(rank: int, faulty: int) -> str:
    """Where a process is."""
    if rank == faulty:
        return "faulty"
    return PLACES[[r for r in range(SIZE) if r != faulty].index(rank)]


def go_wrong(how: str) -> None:
    """What the faulty process does once it has agreed on a collective, instead of launching it."""
    time.sleep(0.5)  # the other one is in it by then
    print("FAULT", time.time(), flush=True)
    if how == "_exit":
        os._exit(9)
    elif how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "SIGSEGV":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "sleeps":
        time.sleep(1000)
    elif how == "loops":
        while True:
            pass
    elif how == "raises":
        raise Mishap("the disk is full")
    elif how == "exits":
        sys.exit(3)


def main(how: str, faulty: int) -> None:
    dist.init_process_group("pjrt")
    rank = dist.get_rank()
    place = place_of(rank, faulty)
    groups = {}
    for other in range(SIZE):
        if (p := place_of(other, faulty)) in ("waiting", "collective"):
            groups[p] = dist.new_group(sorted([faulty, other]))
    x = torch.ones(4, device="pjrt")
    for p, group in groups.items():
        for _ in range(2):  # the second is the program that will be run below
            if place in (p, "faulty"):
                dist.all_reduce(x, group=group)
    dist.barrier()
    _ = x.cpu()
    if place == "faulty":
        from torch_pjrt_spmd.distributed.peers import Peers

        time.sleep(0.3)
        agree = Peers.agree

        def agree_and_go_wrong(*given: Any) -> Any:
            agree(*given)
            go_wrong(how)

        Peers.agree = agree_and_go_wrong  # pyright: ignore[reportAttributeAccessIssue]
        dist.all_reduce(x, group=groups["collective"])
    elif place in groups:
        dist.all_reduce(x, group=groups[place])
    elif place == "alone":
        end = time.monotonic() + float(os.environ["TORCH_PJRT_PEER_TIMEOUT"]) + ALONE_SECONDS
        y = torch.eye(64, device="pjrt")
        while time.monotonic() < end:
            with contextlib.suppress(KeyError):
                y = (y @ y).clamp(0, 1)
                y.sum().item()
            time.sleep(0.01)
    elif place == "exit":
        atexit.register(time.sleep, 1.0)  # what it does at its end, it does after the fault
    print("END", place, time.time(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
