"""Functions that are called in order, here or on a thread."""

from __future__ import annotations

import abc
import os
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["AsyncClosureHandler", "ClosureHandler"]

Closure = Callable[[], Any]


class ClosureHandler(abc.ABC):
    """Calls functions; a subclass says how."""

    @abc.abstractmethod
    def run(self, closure: Closure) -> None:
        """Call it."""

    def run_all(self, closures: Iterable[Closure]) -> None:
        """Call them in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Calls functions in order on a thread of its own.

    max_queue_size  how many may wait before `run` waits, too; or the variable XLA_MAX_ASYNC_QUEUE.

    After a function has raised, the next `run` raises `RuntimeError` with its error as the cause.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        size = int(os.environ.get("XLA_MAX_ASYNC_QUEUE", max_queue_size))
        self._waiting: queue.Queue[Closure] = queue.Queue(size)
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start_event_loop(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._call_all, name="torch_xla-closures", daemon=True
            )
            self._thread.start()

    def run(self, closure: Closure) -> None:
        """Have it called after those that were given before."""
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError(
                "A function that was called before on the thread has raised."
            ) from error
        self.start_event_loop()
        self._waiting.put(closure)

    def _call_all(self) -> None:
        while True:
            try:
                self._waiting.get()()
            except Exception as error:
                self._error = error
            finally:
                self._waiting.task_done()
