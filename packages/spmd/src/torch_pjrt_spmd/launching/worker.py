"""One process of `launch`: it reads from its standard input what to do, and writes to a file what came of it.

Its standard input stays open as long as the launcher lives. Where it ends, this process and all that it has
started end, too.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The ends of the names of files with what came of a task.
RESULT, FAILURE = ".result", ".failure"

# Set while a process of `launch` runs the script of its launcher for the names in it.
IMPORTING = "PJRT_LAUNCH_IMPORTS"


@dataclass(frozen=True, slots=True)
class Task:
    """What a process is told.

    call     the function and its arguments, as bytes.
    script   what `multiprocessing` says of the launcher's script; None where nothing of it is needed.
    path     where the launcher looks for modules.
    answer   the file for what came of it, without the end of its name.
    """

    call: bytes
    script: dict[str, Any] | None
    path: tuple[str, ...]
    answer: str


def main() -> int:
    """Do the task; the exit code."""
    task = _task()
    sys.path[:] = task.path
    _end_with_launcher()
    rank = int(os.environ["RANK"])
    try:
        _put(f"{task.answer}{RESULT}", _done(task))
    except BaseException as error:
        from torch_pjrt_spmd.launching.passing import failure_of

        failure = failure_of(rank, time.monotonic(), error)
        _put(f"{task.answer}{FAILURE}", pickle.dumps(failure))
        return 1
    return 0


def _task() -> Task:
    size = int.from_bytes(_read(8), "big")
    return Task(*pickle.loads(_read(size)))


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := os.read(0, size - len(data))):
            os._exit(1)
        data += more
    return data


def _done(task: Task) -> bytes:
    if task.script is not None:
        from multiprocessing import spawn

        os.environ[IMPORTING] = "1"
        spawn.prepare(task.script)
        del os.environ[IMPORTING]
    import torch  # noqa: F401 - before what is unpickled: it registers the device

    from torch_pjrt_spmd.launching.passing import packed_result

    fn, args = pickle.loads(task.call)
    try:
        result = fn(*args)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        result = None
    return packed_result(result)


def _put(file: str, data: bytes) -> None:
    """The file appears whole."""
    part = Path(f"{file}.part")
    part.write_bytes(data)
    part.rename(file)


def _end_with_launcher() -> None:
    """A thread waits for the end of the standard input; the function finds another, which is empty."""
    line = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        while os.read(line, 1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="torch_pjrt launcher", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
