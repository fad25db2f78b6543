"""The run that Slurm has started this process in: `srun python train.py`, with no other launcher.

    SLURM_JOB_ID, SLURM_STEP_ID          whose port the first process takes
    SLURM_STEP_NUM_TASKS, SLURM_PROCID   how many processes, and which one this is
    SLURM_STEP_NODELIST                  on which hosts: node[001-003,7],other
    SLURM_LOCALID                        which of the processes of this host
    SLURM_STEP_TASKS_PER_NODE            how many each host has: 2(x3),1

A shell on an allocated host, and the script of `sbatch`, are no part of such a step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from torch_pjrt.errors import SettingError
from torch_pjrt.plugin import Processes

# Ports that no service has by custom.
_FIRST_PORT, _PORTS = 61440, 4096

_NEEDED = ("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NODELIST")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def of_slurm(environment: Mapping[str, str] = os.environ) -> Processes | None:
    """The run of a Slurm step; None outside of one, or for a step of one process.

    Where a process of a host sees several GPUs, it takes its share of them by its number on the host. JAX's
    port is by the job's number, or JAX_COORDINATOR_PORT. Raises `SettingError` for what cannot be read.
    """
    count = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
    if not count or not all(environment.get(name) for name in _NEEDED):
        return None
    if _number("SLURM_STEP_NUM_TASKS", count) < 2:
        return None
    job, step = (
        _number(name, environment.get(name) or "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    port = environment.get("JAX_COORDINATOR_PORT") or _FIRST_PORT + (job * 16 + step) % _PORTS
    host = first_host(environment["SLURM_STEP_NODELIST"])
    index = _number("SLURM_PROCID", environment["SLURM_PROCID"])
    return Processes(f"{host}:{port}", int(count), index, own_chips(environment))


def first_host(hosts: str) -> str:
    """The first name of a list as Slurm writes it: `node001` of `node[001-003,7],other`."""
    one = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts.strip())
    assert one is not None
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", one.group())


def own_chips(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """The GPUs of this process among those that it sees, by their place; None: all of them.

    By `--gpus-per-task` a process sees its own alone. Else all of a host see all of the host's.
    """
    seen = next((environment[name] for name in _VISIBLE if environment.get(name)), "")
    n_seen = len([one for one in seen.split(",") if one.strip()])
    n_here = _tasks_here(environment)
    if n_here < 2 or n_seen < n_here:
        return None
    share = n_seen // n_here
    first = _number("SLURM_LOCALID", environment.get("SLURM_LOCALID") or "0") * share
    return tuple(range(first, first + share))


def _tasks_here(environment: Mapping[str, str]) -> int:
    """How many processes this host has."""
    numbers: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise SettingError("SLURM_STEP_TASKS_PER_NODE is a list like 2(x3),1.", saw=part)
        numbers += [int(found[1])] * int(found[2] or 1)
    node = _number("SLURM_NODEID", environment.get("SLURM_NODEID") or "0")
    return numbers[node] if node < len(numbers) else 1


def _number(name: str, text: str) -> int:
    if not text.strip().isdigit():
        raise SettingError(f"{name} is a number.", saw=repr(text))
    return int(text)
