"""The run of several processes that this process is part of, as one: who is in it, and what it agrees on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from torch_pjrt.extend import joined_run, start
from torch_pjrt_spmd.distributed import health
from torch_pjrt_spmd.distributed.joining import is_launched, join, store_of_run
from torch_pjrt_spmd.distributed.peers import Peers
from torch_pjrt_spmd.distributed.settings import peer_timeout


def initialize(init_method: str = "env://") -> None:
    """Start the device as a part of the run that a launcher has started: torchrun, or any that sets the same.

    init_method   as of `torch.distributed.init_process_group`: where the processes find each other; `pjrt://`
                  for those that Slurm has started.

    For programs that spread tensors over the chips of all processes. `init_process_group("pjrt")` does the
    same; neither is needed where JAX's variables say who is in the run. Does nothing for one process alone.
    Raises `DeviceError` where the device has been started for this process alone.
    """
    if joined_run() is not None:
        return
    if dist.is_torchelastic_launched() or init_method != "env://" or is_launched():
        store, rank, size = next(rendezvous(init_method))
        store.set_timeout(timedelta(minutes=30))
        join(PrefixStore("torch_pjrt/run", store), rank, size)
        health.start(store, rank, size, peer_timeout())
    else:
        start()


def process_index() -> int:
    """The number of this process in its run, from 0; 0 for one that is alone."""
    run = joined_run()
    return 0 if run is None else run.index


def process_count() -> int:
    """How many processes the run has; 1 for one that is alone."""
    run = joined_run()
    return 1 if run is None else run.count


def peers_of(chips: Iterable[Any], about: str = "programs") -> Peers | None:
    """The processes that have these chips, if there is more than one; for each matter other `Peers`."""
    processes = tuple(sorted({chip.process_index for chip in chips}))
    return _peers(processes, about) if len(processes) > 1 else None


@cache
def _peers(processes: tuple[int, ...], about: str) -> Peers:
    name = "-".join(map(str, processes)) if len(processes) < process_count() else "all"
    store = PrefixStore(f"torch_pjrt/{about}/{name}", store_of_run())
    health.start(store, process_index(), process_count(), peer_timeout())
    return Peers(store, processes, processes.index(process_index()), peer_timeout())
