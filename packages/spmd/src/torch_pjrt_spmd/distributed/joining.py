"""How processes become one run: by PyTorch's rendezvous, or by JAX's variables.

The launcher (torchrun, say) tells each process where a store is. Through it the first process tells the
others where JAX's coordinator listens: that takes a port of its own, which no launcher knows of.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from torch_pjrt.errors import DeviceError
from torch_pjrt.extend import choose_run, client, joined_run, start
from torch_pjrt.plugin import Processes

_COORDINATOR = "torch_pjrt/coordinator"

# The store by which this process has joined its run.
_stores: list[Any] = []


def join(store: Any, rank: int, size: int) -> None:
    """Start the device as a part of the run of these processes. All of them must call it.

    Does nothing where the process is part of the run already. Raises `DeviceError` where the device has been
    started for this process alone.
    """
    if size < 2:
        return
    if joined_run() is None:
        _stores[:] = [store]
        choose_run(Processes(_coordinator(store, rank), size, rank))
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
        store.set(_COORDINATOR, f"{_own_address(store)}:{port}")
    return store.get(_COORDINATOR).decode()


def _own_address(store: Any) -> str:
    """By which name the other processes reach this host."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None)
    if host in ("localhost", "127.0.0.1", "::1"):
        return "127.0.0.1"
    return socket.gethostbyname(socket.gethostname())


def rendezvous(url: str, timeout: timedelta | None) -> Iterator[tuple[Any, int, int]]:
    """The store of `init_process_group("pjrt", init_method="pjrt://")`: of the device's run.

    For processes that JAX's variables, or a cluster's own, have made one run.
    """
    start()
    run = joined_run()
    if run is None:
        raise DeviceError(
            f"`{url}` is for processes that are a run already, which this one is not.",
            hint="set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or use torchrun and `env://`",
        )
    yield store_of_run(timeout or timedelta(minutes=5)), run.index, run.count


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
