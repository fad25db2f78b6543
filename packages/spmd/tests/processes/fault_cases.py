"""Starts `faulty_run.py`, and tells what each process did after the fault."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from faulty_run import SIZE, place_of

import warm

SCRIPT = Path(__file__).parent / "faulty_run.py"
WAYS = ("_exit", "SIGKILL", "SIGSEGV", "SIGSTOP", "sleeps", "loops", "raises", "exits")


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    place     where it was when the other one went wrong.
    status    as of `Popen.returncode`; None: it had not ended in time, and was killed.
    seconds   from the fault to its end.
    out, err  what it printed.
    """

    rank: int
    place: str
    status: int | None
    seconds: float
    out: str
    err: str


def run(how: str, faulty: int, limit: float, patience: float = 40.0) -> dict[str, Ended]:
    """Each process by its place.

    limit     TORCH_PJRT_PEER_TIMEOUT, in seconds.
    patience  after how many seconds from the fault a process is killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(SIZE),
        "OMP_NUM_THREADS": "1",
        "TORCH_PJRT_PEER_TIMEOUT": str(limit),
        "TORCH_CPP_LOG_LEVEL": "FATAL",
    }
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{rank}" for rank in range(SIZE)]
        started = []
        for rank, file in enumerate(files):
            with open(f"{file}.out", "w") as out, open(f"{file}.err", "w") as err:
                command = [str(SCRIPT), how, str(faulty)]
                own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                started.append(warm.start(command, own, stdout=out, stderr=err))
        ended: dict[int, float] = {}
        begun, at_fault = time.time(), None
        while time.time() - (at_fault or begun + 150) < patience:
            if at_fault is None:
                said = re.search(r"^FAULT (\S+)\n", Path(f"{files[faulty]}.out").read_text(), re.M)
                at_fault = float(said[1]) if said else None
            for rank, process in enumerate(started):
                if rank not in ended and process.poll() is not None:
                    ended[rank] = time.time()
            if set(range(SIZE)) - set(ended) <= {faulty} and at_fault is not None:
                break
            time.sleep(0.01)
        for process in started:
            process.kill()
            process.wait()
        found = {}
        for rank, process in enumerate(started):
            place = place_of(rank, faulty)
            found[place] = Ended(
                rank,
                place,
                process.returncode if rank in ended else None,
                ended.get(rank, time.time()) - (at_fault or begun),
                Path(f"{files[rank]}.out").read_text(),
                Path(f"{files[rank]}.err").read_text(),
            )
        return found
