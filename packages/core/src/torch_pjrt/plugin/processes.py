"""Many processes, on one host or several, that run one program: who they are, and how they find each other.

By JAX's own variables, which its launchers and those of clusters set:

    JAX_COORDINATOR_ADDRESS=host:port  JAX_NUM_PROCESSES=2  JAX_PROCESS_ID=0  [JAX_LOCAL_DEVICE_IDS=0,1]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torch_pjrt.errors import DeviceError, SettingError
from torch_pjrt.plugin.steady_line import steady_line
from torch_pjrt.session import session

_ADDRESS, _COUNT = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"
_ID, _CHIPS = "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS"

# How long a process waits for the others when it joins.
_START_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Processes:
    """What a process has to know before its client is made.

    coordinator   `host:port`, on which the first process listens.
    count, index  how many processes there are, and which one this is, from 0.
    local_chips   the numbers of the host's chips that are this process's; None: all of them.

    Raises `SettingError` for an index that is not from 0 to `count - 1`.

        >>> Processes("10.0.0.1:8476", count=2, index=2)
        Traceback (most recent call last):
        torch_pjrt.errors.SettingError: A process has a number that there is no process of.
          saw: process 2 of 2
          expected: JAX_PROCESS_ID from 0 to JAX_NUM_PROCESSES - 1
    """

    coordinator: str
    count: int
    index: int
    local_chips: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise SettingError(
                "A process has a number that there is no process of.",
                saw=f"process {self.index} of {self.count}",
                expected=f"{_ID} from 0 to {_COUNT} - 1",
            )


def of_environment(environment: Mapping[str, str] = os.environ) -> Processes | None:
    """What the variables say; None if the process is alone. `SettingError` where some of them are missing.

    >>> of_environment() is None  # no launcher has started this process
    True
    """
    given = {name: environment[name] for name in (_ADDRESS, _COUNT, _ID) if environment.get(name)}
    if not given:
        return None
    missing = [name for name in (_ADDRESS, _COUNT, _ID) if name not in given]
    if missing:
        raise SettingError(
            "The variables of a run of several processes are incomplete.",
            saw=", ".join(f"{name}={value}" for name, value in given.items()),
            expected=f"{' and '.join(missing)} too",
        )
    chips = environment.get(_CHIPS, "")
    try:
        numbers = int(given[_COUNT]), int(given[_ID])
        local = tuple(int(n) for n in chips.split(",")) if chips else None
    except ValueError as error:
        raise SettingError(
            "A variable of a run of several processes is no number.",
            saw=", ".join(f"{n}={environment.get(n, '')}" for n in (_COUNT, _ID, _CHIPS)),
        ) from error
    return Processes(given[_ADDRESS], *numbers, local)


class _Run:
    """The run that this process is part of, or is to be part of when its device starts."""

    def __init__(self) -> None:
        self.chosen: Processes | None = None
        self.joined: Processes | None = None


_run = session.own("the run of several processes", _Run())


def choose_run(processes: Processes) -> None:
    """Have the device start as a part of this run, whatever the environment says.

    The first process then serves as coordinator, on the port of `processes.coordinator`. Raises
    `DeviceError` where the process is part of another run.

        >>> from torch_pjrt.plugin import Processes
        >>> choose_run(Processes("10.0.0.1:8476", count=2, index=0))  # before the device starts
    """
    if _run.joined not in (None, processes):
        raise DeviceError(
            "This process is part of a run already.",
            saw=f"{_run.joined}",
            expected=f"{processes}",
        )
    _run.chosen = processes


def joined() -> Processes | None:
    """The run that this process has joined; None if it is alone. `of_environment` says who is to join.

    >>> joined_run() is None
    True
    """
    return _run.joined


def join(processes: Processes | None) -> None:
    """Have the clients that this process makes be part of the run; waits until all processes are there.

    Does nothing for one process alone, and where the user has joined by `jax.distributed.initialize()`.
    """
    import jax

    processes = _run.chosen or processes
    if processes is None or processes.count < 2:
        return
    if not jax.distributed.is_initialized():
        from torch_pjrt.plugin.jax_backend import join_run  # which imports JAX

        host, _, port = processes.coordinator.rpartition(":")
        if processes.index == 0:
            host = "127.0.0.1"
        near = steady_line(host.strip("[]"), int(port), _START_SECONDS)
        join_run(int(port), near, processes, _START_SECONDS)
    _run.joined = processes
