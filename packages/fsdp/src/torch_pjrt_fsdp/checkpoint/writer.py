"""The process that writes checkpoints while another one trains.

It is `python -m torch_pjrt_fsdp.checkpoint.writer NUMBER`, with the number of a socket. It gets jobs through
that, and with them, when there is a new one, the memory that both have. It ends when the other end of the
socket is gone; what it was writing then is never offered.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torch_pjrt_fsdp.checkpoint.storage import Storage, storage_of
from torch_pjrt_fsdp.checkpoint.writing import Abandoned, Job, Plan, tell_others, write

LENGTH = struct.Struct("!Q")


def send(connection: socket.socket, message: Any, file: int | None = None) -> None:
    """Send what pickles, and a file with it."""
    text = pickle.dumps(message)
    files = [] if file is None else [file]
    socket.send_fds(connection, [LENGTH.pack(len(text))], files)
    connection.sendall(text)


def receive(connection: socket.socket) -> tuple[Any, int | None]:
    """What was sent. Raises `EOFError` when the other end is gone."""
    head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 1)
    while len(head) < LENGTH.size:
        head += _some(connection, LENGTH.size - len(head))
    text = bytearray()
    n = LENGTH.unpack(head)[0]
    while len(text) < n:
        text += _some(connection, n - len(text))
    return pickle.loads(text), files[0] if files else None


def has_something(connection: socket.socket, wait_s: float | None) -> bool:
    """Whether the other end has sent something or is gone; waits for that, or for ever if None.

    By `poll`: `select` takes no file whose number is above 1023.
    """
    asked = select.poll()
    asked.register(connection, select.POLLIN)
    return bool(asked.poll(None if wait_s is None else 1000 * wait_s))


def _some(connection: socket.socket, n: int) -> bytes:
    found = connection.recv(min(n, 1 << 20))
    if not found:
        raise EOFError
    return found


def perform(
    job: Job,
    plan: Plan,
    content: memoryview,
    storage: Storage,
    wanted: Callable[[], bool],
) -> str | None:
    """Write a checkpoint; what went wrong, in words, or None."""
    try:
        write(job, plan, content, storage, wanted, time.sleep)
    except Exception as error:
        is_told = isinstance(error, Abandoned)
        with suppress(Exception):
            tell_others(job, storage, str(error) if is_told else f"{type(error).__name__}: {error}")
        return str(error) if is_told else traceback.format_exc(limit=-2)
    return None


def main(number: int) -> None:
    """Serve the socket of this number until it ends."""
    # A signal for all processes of a terminal or a job is for the one that trains, whose end is ours.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    os.nice(5)
    connection = socket.socket(fileno=number)
    storages: dict[str, Storage] = {}
    content = memoryview(b"")
    plan = Plan([], [], [])
    with suppress(EOFError, ConnectionError):
        while True:
            (folder, job, new_plan), file = receive(connection)
            if file is not None:
                size = os.fstat(file).st_size
                content = memoryview(mmap.mmap(file, size, prot=mmap.PROT_READ))
                os.close(file)
            plan = new_plan or plan
            if folder not in storages:
                storages[folder] = storage_of(folder)
            is_open = partial(_is_open, connection)
            send(connection, perform(job, plan, content, storages[folder], is_open))


def _is_open(connection: socket.socket) -> bool:
    """Whether the other end is there; it sends nothing while it waits for an answer."""
    return not has_something(connection, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
