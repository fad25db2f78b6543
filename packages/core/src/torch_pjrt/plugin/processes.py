"""Many processes, on one host or several, that run one program: who they are, and how they find each other.

By JAX's own variables, which its launchers and those of clusters set:

    JAX_COORDINATOR_ADDRESS=host:port  JAX_NUM_PROCESSES=2  JAX_PROCESS_ID=0  [JAX_LOCAL_DEVICE_IDS=0,1]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torch_pjrt.errors import SettingError

_ADDRESS, _COUNT = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"
_ID, _CHIPS = "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS"


@dataclass(frozen=True, slots=True)
class Processes:
    """What a process has to know before its client is made.

    coordinator   `host:port`, on which the first process listens.
    count, index  how many processes there are, and which one this is, from 0.
    local_chips   the numbers of the host's chips that are this process's; None: all of them.
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
    """What the variables say; None if the process is alone. `SettingError` where some of them are missing."""
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


def join(processes: Processes | None) -> None:
    """Have the clients that this process makes be part of the run; waits until all processes are there.

    Does nothing for one process alone, and where the user has joined by `jax.distributed.initialize()`.
    """
    import jax

    if processes is None or processes.count < 2 or jax.distributed.is_initialized():
        return
    jax.distributed.initialize(
        processes.coordinator,
        processes.count,
        processes.index,
        list(processes.local_chips) if processes.local_chips is not None else None,
    )
