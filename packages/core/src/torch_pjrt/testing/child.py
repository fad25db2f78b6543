"""A child process that is asked in lines of JSON and answers in lines; it may die or hang."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from torch_pjrt.testing.quick import quick_flags


def environment(*, quick: bool = True, programs: str = "", **more: str) -> dict[str, str]:
    """Of a child: this process's, with programs compiled quickly unless it says how, and kept in a folder.

    None keeps any by default: such runs make thousands that nobody needs again. The folder may become larger
    than one of a user's: what is in it is to be there for the next process.
    """
    # Flags of the environment, also empty ones, win.
    flags = {"XLA_FLAGS": quick_flags()} if quick else {}
    folder = {"TORCH_PJRT_CACHE_DIR": programs, "TORCH_PJRT_CACHE_BYTES": str(16 << 30)}
    return {**flags, **os.environ, **more, **folder}


_END = ""  # what the reader puts where the child's answers end


class Child:
    """A Python process that runs `arguments` (`-m module ...`).

    What it prints, and what a crash prints, goes to a file whose end is `last_words`. Its answers are what it
    writes to the stream that `answers()` gives it.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  closed by `stop`
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=dict(environment),
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=_forward, args=(self._process.stdout, self._lines), daemon=True
        )
        self._reader.start()

    def ask(self, question: Any) -> None:
        """Send a question. A child that is not there any more shows itself by its answers."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def answer(self, timeout_s: float) -> Any:
        """The next answer; None if the child ended. Raises `TimeoutError` if it says nothing for so long."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        return None if line == _END else json.loads(line)

    def how_it_ended(self) -> str:
        """The signal or exit status of a child that has ended, and its last words."""
        status = self._process.wait()
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"{how}: {self.last_words()}"

    def last_words(self) -> str:
        """The first line of a fatal error, or else the last that it printed."""
        lines = [line.strip() for line in self.log().splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("Fatal", "terminate", "F00"))]
        return (fatal or lines or ["it said nothing"])[-1]

    def log(self) -> str:
        """All that it printed; after a crash, where each thread was."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        with contextlib.suppress(BrokenPipeError):
            self._process.__exit__(None, None, None)  # closes the pipes
        self._log.close()


def _forward(stream: TextIO, lines: queue.SimpleQueue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(_END)


def answers() -> TextIO:
    """In the child: where answers go. What anything else prints goes to the log from now on."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream
