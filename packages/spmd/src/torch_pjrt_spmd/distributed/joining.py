"""How processes become one run: by PyTorch's rendezvous, or by JAX's variables.

The launcher (torchrun, say) tells each process where a store is. Through it the first process tells the
others where JAX's coordinator listens: that takes a port of its own, which no launcher knows of.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore
from torch.distributed.rendezvous import rendezvous as rendezvous_by

from torch_pjrt.errors import DeviceError
from torch_pjrt.extend import choose_run, client, joined_run, start
from torch_pjrt.plugin import Processes, of_environment
from torch_pjrt_spmd.distributed.addresses import own_address
from torch_pjrt_spmd.distributed.attempts import new_attempt
from torch_pjrt_spmd.launching.clusters import of_slurm

_COORDINATOR = "coordinator"

# The store by which this process has joined its run.
_stores: list[Any] = []
# The name of the attempt that this process belongs to.
_attempts: list[str] = []


def join(store: Any, rank: int, size: int) -> None:
    """Start the device as a part of the run of these processes. All of them must call it.

    Does nothing where the process is part of the run already. Raises `DeviceError` where the device has been
    started for this process alone.
    """
    if size < 2:
        return
    _attempts[:] = [new_attempt(store, rank, size)]
    if joined_run() is None:
        _stores[:] = [own_part(store)]
        choose_run(Processes(_coordinator(_stores[0], rank), size, rank, own_chips()))
    start()
    run = joined_run()
    if run is None or run.count != size or run.index != rank:
        raise DeviceError(
            "The device was started before this process joined the others.",
            saw="a device of this process alone"
            if run is None
            else f"process {run.index} of {run.count}",
            expected=f"process {rank} of {size}",
            hint='call `init_process_group("pjrt")` before the first tensor on the device',
        )


def _coordinator(store: Any, rank: int) -> str:
    """Where JAX's coordinator is: the first process chooses a port, and tells the others."""
    if rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        store.set(_COORDINATOR, f"{own_address(store)}:{port}")
    return store.get(_COORDINATOR).decode()


def own_part(store: Any) -> Any:
    """The part of a store that is this attempt's: another has the keys of those before it as well."""
    return PrefixStore(own_prefix(), store)


def own_prefix() -> str:
    """What stands before the keys of this attempt."""
    return "/".join(("torch_pjrt", *_attempts))


def rendezvous(url: str, timeout: timedelta | None) -> Iterator[tuple[Any, int, int]]:
    """The store of `init_process_group("pjrt", init_method="pjrt://")`: of the run, whoever has started it.

    torchrun and what sets the same variables; JAX's variables; Slurm; the hosts of a TPU pod. A process that
    none of them has started is a run of its own.
    """
    if joined_run() is None and is_launched():
        yield next(rendezvous_by("env://", timeout=timeout or timedelta(minutes=30)))
        return
    cluster = None if joined_run() is not None or of_environment() is not None else of_slurm()
    if cluster is not None:
        choose_run(cluster)
    start()
    run = joined_run()
    if run is not None:
        yield store_of_run(timeout or timedelta(minutes=5)), run.index, run.count
    elif cluster is not None:
        raise DeviceError(
            "The device was started before this process joined the others.",
            saw="a device of this process alone",
            expected=f"process {cluster.index} of {cluster.count}, as Slurm says",
            hint=f'call `init_process_group("pjrt", init_method="{url}")` before the first tensor on it',
        )
    else:
        yield HashStore(), 0, 1


def is_launched() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def own_chips() -> tuple[int, ...] | None:
    """The chip of a process that has others on its host, by its number there; None: all that it sees."""
    here, number = (os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"))
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES") or ""
    if not number.isdigit() or here in ("", "1") or (len(seen.split(",")) == 1 and seen):
        return None  # it has the host, or its launcher shows it one chip
    return (int(number),)


def store_of_run(timeout: timedelta = timedelta(minutes=5)) -> Any:
    """The store of this process's run: that by which it has joined, or one that the first process serves."""
    if not _stores:
        run = joined_run()
        assert run is not None
        _stores.append(_served(run, timeout))
    return _stores[0]


def _served(run: Processes, timeout: timedelta) -> Any:
    """A store that the first process serves, told to the others by JAX's own."""
    from jax._src import distributed  # the run's key-value store

    table, key = distributed.global_state.client, "torch_pjrt/store"
    assert table is not None
    if run.index == 0:
        store = TCPStore("0.0.0.0", 0, run.count, True, timeout, wait_for_workers=False)
        host = run.coordinator.rpartition(":")[0]
        table.key_value_set(key, f"{host}:{store.port}")
        return store
    host, _, port = table.blocking_key_value_get(
        key, int(timeout.total_seconds() * 1000)
    ).rpartition(":")
    return TCPStore(host, int(port), run.count, False, timeout, wait_for_workers=False)


def chip_of(rank: int) -> Any:
    """The first chip of a process of the run."""
    chips = [chip for chip in client().chip.client.devices() if chip.process_index == rank]
    return min(chips, key=lambda chip: chip.id)
