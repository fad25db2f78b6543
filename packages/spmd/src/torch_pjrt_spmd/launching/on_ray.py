"""`launch_on_ray`: a function in processes on the hosts of a Ray cluster.

Each process is an actor with a place of its own. All of an attempt are new: a process that has been part of a
run cannot join another. The actor of rank 0 keeps the store by which they find each other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch_pjrt.errors import MissingPackage
from torch_pjrt_spmd.launching.passing import (
    Failure,
    LaunchError,
    error_of,
    failure_of,
    first_of,
    packed_call,
    packed_result,
)

# After the first failure: how long others may take to say that they failed before.
_WORDS_SECONDS = 1.0


def launch_on_ray(
    fn: Callable[..., Any],
    num_workers: int,
    args: tuple[Any, ...] = (),
    *,
    resources: Mapping[str, float] | None = None,
    one_per_host: bool = True,
    environment: Mapping[str, str] | None = None,
    max_restarts: int = 0,
    place_timeout: float = 600.0,
) -> list[Any]:
    """Call `fn(*args)` in `num_workers` new processes of a Ray cluster; what each returned, by rank.

    resources      that each process gets: `{"CPU": 8, "GPU": 4}`, `{"TPU": 4}`; one CPU unless given.
    one_per_host   no host has two of them; otherwise they are placed close together.
    environment    variables for the processes.
    max_restarts   how often all are started again after one has failed. `fn` then goes on from its last
                   checkpoint (`launching.checkpoints`); TORCHELASTIC_RESTART_COUNT counts.
    place_timeout  how long to wait for places, in seconds.

    Uses the cluster that this process is connected to, and connects to it by `ray.init()` otherwise. Each
    process has the variables that torchrun sets, so that `init_process_group("pjrt")` makes them one run.

    Raises `LaunchError` where a process of the last attempt fails, with its rank and traceback, and where the
    cluster has no place for them; `MissingPackage` without Ray. All processes are gone afterwards.
    """
    ray = _ray()
    if num_workers < 1:
        raise LaunchError("A launch has one process at least.", saw=f"num_workers={num_workers}")
    call = packed_call(fn, args)
    if not ray.is_initialized():
        ray.init()
    wanted = dict(resources or {"CPU": 1})
    attempt = 0
    while True:
        variables = {
            **(environment or {}),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        }
        with _placements(num_workers, wanted, one_per_host, place_timeout) as placements:
            done = _attempt(placements, num_workers, wanted, call, variables)
        if isinstance(done, list):
            return done
        if attempt >= max_restarts:
            raise error_of(done, num_workers)
        attempt += 1
        print(f"Rank {done.rank} failed: {done.words}. All are started again.", flush=True)


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackage(
            "Ray is not installed.", hint='`pip install "torch-pjrt-spmd[ray]"`'
        ) from error
    return ray


@contextlib.contextmanager
def _placements(
    count: int, resources: dict[str, float], one_per_host: bool, timeout: float
) -> Iterator[Any]:
    """A place for each process, which are given back at the end."""
    ray = _ray()
    from ray.util.placement_group import placement_group, remove_placement_group  # pyright: ignore[reportMissingImports]

    strategy = "STRICT_SPREAD" if one_per_host and count > 1 else "PACK"
    placements = placement_group([dict(resources)] * count, strategy=strategy)
    try:
        if not placements.wait(timeout):
            raise LaunchError(
                "The Ray cluster has no place for the processes.",
                saw=f"{len(ray.nodes())} hosts with {ray.cluster_resources()} together",
                expected=f"{count} times {resources}"
                + (", each on a host of its own" if one_per_host else ""),
                hint="`one_per_host=False` lets a host have several" if one_per_host else None,
            )
        yield placements
    finally:
        remove_placement_group(placements)


def _attempt(
    placements: Any,
    count: int,
    resources: dict[str, float],
    call: bytes,
    variables: Mapping[str, str],
) -> list[Any] | Failure:
    """What each process returned, or the first failure."""
    ray = _ray()
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore[reportMissingImports]

    more = {name: n for name, n in resources.items() if name not in ("CPU", "GPU", "memory")}
    actor = ray.remote(
        num_cpus=resources.get("CPU", 0),
        num_gpus=resources.get("GPU", 0),
        memory=resources.get("memory"),
        resources=more,
        max_restarts=0,
    )(_Worker)
    workers = [
        actor.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=placements, placement_group_bundle_index=bundle
            )
        ).remote()
        for bundle in range(count)
    ]
    try:
        hosts = ray.get([worker.host.remote() for worker in workers])
        # Processes of one host have numbers in a row, as under torchrun.
        order = sorted(range(count), key=lambda i: (hosts.index(hosts[i]), i))
        workers, hosts = [workers[i] for i in order], [hosts[i] for i in order]
        port = ray.get(workers[0].serve.remote(hosts[0][1]))
        futures = [
            worker.run.remote(call, {**variables, **_variables(rank, hosts, port)})
            for rank, worker in enumerate(workers)
        ]
        return _results(futures)
    except ray.exceptions.RayActorError as error:
        return Failure(0, time.time(), f"a process did not start: {_words_of(error)}", "")
    finally:
        for worker in workers:
            ray.kill(worker)


def _variables(rank: int, hosts: Sequence[tuple[str, str]], port: int) -> dict[str, str]:
    """What torchrun would set on the process of this rank. `hosts` has the host of each, and its address."""
    here = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(here.index(rank)),
        "GROUP_RANK": str(list(dict.fromkeys(hosts)).index(hosts[rank])),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "MASTER_ADDR": hosts[0][1],
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "PJRT_STORE_KEEPER": "rank 0",  # its actor serves it
    }


def _results(futures: list[Any]) -> list[Any] | Failure:
    """What each process returned, as soon as all have; the first failure, as soon as one has failed."""
    ray = _ray()
    ranks = {future: rank for rank, future in enumerate(futures)}
    results: dict[int, Any] = {}
    failures: list[Failure] = []
    left, last = list(futures), None
    while left and (last is None or time.monotonic() < last):
        ended, left = ray.wait(left, timeout=None if last is None else 0.1)
        for future in ended:
            try:
                said = ray.get(future)
            except ray.exceptions.RayError as error:
                said = Failure(ranks[future], time.time(), _words_of(error), "")
            if isinstance(said, Failure):
                failures.append(said)
            else:
                results[ranks[future]] = pickle.loads(said)
        if failures and last is None:
            last = time.monotonic() + _WORDS_SECONDS
        if any(not failure.is_result for failure in failures):
            break
    return first_of(failures) if failures else [results[rank] for rank in range(len(futures))]


def _words_of(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return f"{type(error).__name__}: {' '.join(lines)[:500]}"


class _Worker:
    """One process; Ray makes an actor of it."""

    def host(self) -> tuple[str, str]:
        """The host's number in the cluster, and its address."""
        ray = _ray()
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def serve(self, address: str) -> int:
        """The port of the store, which this process keeps from now on."""
        from torch._C._distributed_c10d import TCPStore

        self._store = TCPStore(address, 0, None, True, wait_for_workers=False)
        return self._store.port

    def run(self, call: bytes, variables: Mapping[str, str]) -> bytes | Failure:
        """Call the function; its result as bytes."""
        os.environ.update(variables)
        try:
            import torch  # noqa: F401 - before what is unpickled: it registers the device

            fn, args = pickle.loads(call)
            return packed_result(fn(*args))
        except BaseException as error:
            return failure_of(int(variables["RANK"]), time.time(), error)
