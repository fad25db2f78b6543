"""The process that writes while training goes on, as the training process sees it."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from torch_pjrt_fsdp.checkpoint.shared_memory import SharedMemory
from torch_pjrt_fsdp.checkpoint.storage import storage_of
from torch_pjrt_fsdp.checkpoint.writer import has_something, perform, receive, send
from torch_pjrt_fsdp.checkpoint.writing import Job, Plan

_WRITER = "torch_pjrt_fsdp.checkpoint.writer"


class WritingProcess:
    """The writing process, at the other end of a socket. It begins with the first job."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._maker = os.getpid()
        self._answer: tuple[str | None] | None = (None,)
        self._knows: tuple[Plan | None, int | None] = (None, None)  # the plan and the memory it has

    def begin(self, folder: str, job: Job, plan: Plan, memory: SharedMemory) -> None:
        """Send it what to do."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._connection is not None
        self.result()  # of a job before, for which nobody has waited to the end
        known_plan, known_memory = self._knows
        self._answer = None
        new_plan = None if plan is known_plan else plan
        file = None if memory.identity == known_memory else memory.file
        try:
            with suppress(ConnectionError):  # it is gone: the result says so
                send(self._connection, (folder, job, new_plan), file)
        except BaseException:  # a handler of a signal: it has half of the message
            self._let_go()
            raise
        self._knows = plan, memory.identity

    def _start(self) -> None:
        if self._connection is not None:
            self._let_go()
        self._connection, theirs = socket.socketpair()
        paths = [path for path in sys.path if path]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WRITER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )

    def _let_go(self) -> None:
        """Have nothing to do with it any more: it ends, and what it is writing is abandoned."""
        assert self._connection is not None
        assert self._process is not None
        self._connection.close()
        self._process.wait()
        self._connection = self._process = None
        self._knows = None, None
        self._answer = self._answer or ("What was being written has been abandoned.",)

    def result(self) -> str | None:
        """What went wrong with the last job, or None; waits for it."""
        if self._answer is None:
            assert self._connection is not None
            assert self._process is not None
            has_something(self._connection, None)  # a handler of a signal may end this wait
            try:
                self._answer = (receive(self._connection)[0],)
            except (EOFError, ConnectionError):
                status = self._process.wait()
                self._answer = (f"The process that writes has ended with status {status}.",)
            except BaseException:  # half of the answer is read
                self._let_go()
                raise
        return self._answer[0]

    def is_done(self) -> bool:
        if self._answer is not None or self._connection is None:
            return True
        return has_something(self._connection, 0)

    def close(self) -> None:
        """Wait for the last job, and end the process."""
        if self._maker != os.getpid() or self._connection is None or self._process is None:
            return  # a forked process has only a copy
        self.result()
        if self._connection is not None:
            self._let_go()


class HandingOver:
    """A thread that does one thing after the other while the caller goes on. It begins with the first."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._maker = os.getpid()
        self._done = threading.Event()
        self._done.set()
        self._error: Exception | None = None

    def begin(self, do: Callable[[], None]) -> None:
        """Have it done; what was asked for before is done."""
        self._error = None
        self._done.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="checkpoints", daemon=True)
            self._thread.start()
        self._asked.put(do)

    def _serve(self) -> None:
        while (do := self._asked.get()) is not None:
            try:
                do()
            except Exception as error:
                self._error = error
            del do  # what it holds of the device's memory goes
            self._done.set()

    def result(self) -> Exception | None:
        """What it raised, told once; waits for it."""
        if self._maker == os.getpid():  # a forked process has no such thread
            self._done.wait()
        error, self._error = self._error, None
        return error

    def is_done(self) -> bool:
        return self._done.is_set()

    def close(self) -> None:
        """Wait for it, and end the thread."""
        self.result()
        self._asked.put(None)


class WritingThread:
    """A thread in the place of the process, for file systems that only this process has: `memory://`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: str | None = None

    def begin(self, folder: str, job: Job, plan: Plan, memory: SharedMemory) -> None:
        self.result()
        content = memoryview(memory.mapped) if plan.entries else memoryview(b"")
        storage = storage_of(folder)

        def write() -> None:
            self._error = perform(job, plan, content, storage, lambda: True)

        self._thread = threading.Thread(target=write, name="checkpoint")
        self._thread.start()

    def result(self) -> str | None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._error

    def is_done(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def close(self) -> None:
        self.result()
