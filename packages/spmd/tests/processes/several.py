"""Starts a script in several processes that find each other by `env://`, and waits, but not for ever."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import warm
from hangs import HANGS_S
from torch_pjrt.testing.quick import quick_flags

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


@dataclass(frozen=True)
class Ended:
    """How a process ended: its status (None: it did not in time), what it printed, after how many seconds."""

    status: int | None
    out: str
    err: str
    seconds: float


def run(
    script: str,
    n: int,
    *arguments: str,
    timeout_s: float = HANGS_S,
    chips: int = 1,
    of_rank: tuple[str, ...] = ("RANK", "LOCAL_RANK"),
    variables: Mapping[str, str] | None = None,
    **environment: str,
) -> list[Ended]:
    """What n processes of a script beside this file printed, in the order of ranks.

    chips    virtual CPU devices of each process.
    of_rank  the variables that tell a process its number.
    variables, environment   variables of the environment.
    """
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(n),
        "OMP_NUM_THREADS": "1",
        "TORCH_PJRT_CACHE_DIR": "",
        "PYTHONPATH": os.pathsep.join([str(HERE), *_paths()]),
        "XLA_FLAGS": f"{quick_flags()} --xla_force_host_platform_device_count={chips}",
        **(variables or {}),
        **environment,
    }
    begun = time.monotonic()
    running: list[Any] = []
    for rank in range(n):
        out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by `_ended`
        own = {**shared, **dict.fromkeys(of_rank, str(rank))}
        process = warm.start([str(HERE / script), *arguments], own, stdout=out, stderr=err)
        running.append((process, out, err))
    seconds: dict[int, float] = {}
    while len(seconds) < n and time.monotonic() - begun < timeout_s:
        time.sleep(0.02)
        for rank, (process, _, _) in enumerate(running):
            if rank not in seconds and process.poll() is not None:
                seconds[rank] = time.monotonic() - begun
    return [
        _ended(process, out, err, seconds.get(rank, timeout_s))
        for rank, (process, out, err) in enumerate(running)
    ]


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _paths() -> list[str]:
    given = os.environ.get("PYTHONPATH", "")
    return [path for path in given.split(os.pathsep) if path]


def _ended(process: Any, out: TextIO, err: TextIO, seconds: float) -> Ended:
    status = process.poll()
    if status is None:
        process.kill()
        process.wait()
    out.seek(0)
    err.seek(0)
    with out, err:
        return Ended(status, out.read(), err.read(), seconds)
