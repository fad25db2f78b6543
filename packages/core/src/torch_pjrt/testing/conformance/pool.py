"""Worker processes that check cases, one operator and dtype at a time.

A case may end its process or never end: each worker is watched, and such a case is tried once more in
the ordinary way before it counts as failed.

From disk, some units are checked in one process, and then again in another, which loads the programs that the
first has compiled; what counts is the second. There a case that ends its process has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field
from itertools import groupby, islice
from typing import Any, TextIO

from torch_pjrt.testing.child import QUICK_XLA_FLAGS
from torch_pjrt.testing.conformance import gaps
from torch_pjrt.testing.conformance.cases import Case
from torch_pjrt.testing.conformance.check import Result, check

_UNITS = 60  # after so many, a worker makes room for a fresh one: programs stay in memory
_UNITS_FROM_DISK = 20  # that a pair of processes checks
_FAST_S, _ORDINARY_S = 40, 3600  # how long a case may take
_SLOW_WHEN_FAST = ("max_pool2d_with_indices_backward", "nn.functional.max_pool2d")

Units = queue.SimpleQueue[list[Case]]
Results = queue.SimpleQueue[Result | None]


def check_all(
    cases: Iterable[Case], device: str, n_workers: int, *, from_disk: bool = False
) -> Iterator[Result]:
    """The results of all cases, as they come."""
    units: Units = queue.SimpleQueue()
    for _, unit in groupby(cases, key=lambda case: (case.operator, case.dtype)):
        units.put(list(unit))
    results: Results = queue.SimpleQueue()
    target = _shepherd_of_pairs if from_disk else _shepherd
    shepherds = [
        threading.Thread(target=target, args=(units, results, device), daemon=True)
        for _ in range(n_workers)
    ]
    for thread in shepherds:
        thread.start()
    running = n_workers
    while running:
        result = results.get()
        if result is None:
            running -= 1
        else:
            yield result


def _waiting(units: Units) -> Iterator[list[Case]]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield units.get_nowait()


def _shepherd(units: Units, results: Results, device: str) -> None:
    """Feed units to a worker, and get another one when it ends, hangs or has done enough."""
    worker = _Worker(device)
    try:
        for unit in _waiting(units):
            for result in worker.check(unit):
                results.put(result)
    finally:
        worker.stop()
        results.put(None)


def _shepherd_of_pairs(units: Units, results: Results, device: str) -> None:
    """Feed units to a worker that compiles, then to one that loads."""
    try:
        while some := list(islice(_waiting(units), _UNITS_FROM_DISK)):
            with tempfile.TemporaryDirectory() as folder:
                compiles, loads = (
                    _Worker(device, folder),
                    _Worker(device, folder, tries_again=False),
                )
                for unit in some:
                    for _ in compiles.check(unit):
                        pass
                compiles.stop()
                for unit in some:
                    for result in loads.check(unit):
                        results.put(result)
                        if result.compiled:  # and so has set up what a process that loads has to
                            loads.done = _UNITS
                loads.stop()
    finally:
        results.put(None)


@dataclass(slots=True)
class _Worker:
    """A process that checks cases.

    programs     the folder in which it keeps programs; none by default: they are thousands that nobody needs.
    tries_again  whether a case that ends it, or takes long, is tried in the ordinary way.
    """

    device: str
    programs: str = ""
    tries_again: bool = True
    fast: bool = True
    process: subprocess.Popen[str] | None = None
    done: int = 0
    lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def check(self, unit: list[Case]) -> Iterator[Result]:
        waiting = list(unit)
        if self.fast and unit[0].operator in _SLOW_WHEN_FAST:
            self._start_over(fast=False)
        while waiting:
            self._ask(waiting if self.fast else waiting[:1])
            while waiting:
                line = self._answer()
                if not line and self.fast and self.tries_again:
                    self._start_over(fast=False)
                    break
                if line:
                    result = Result(**json.loads(line))
                else:
                    result = Result(*astuple(waiting[0]))
                    result.fail("its process ended, or took too long")
                    self.stop()
                waiting.pop(0)
                yield result
                if not (self.fast and line):
                    break
        if not self.fast:
            self._start_over(fast=True)
        self.done += 1
        if self.done >= _UNITS:
            self.stop()

    def _answer(self) -> str:
        """The next line of the process; empty if there is none, or not in time."""
        in_a_hurry = self.fast and self.tries_again
        try:
            return self.lines.get(timeout=_FAST_S if in_a_hurry else _ORDINARY_S)
        except queue.Empty:
            return ""

    def _ask(self, cases: list[Case]) -> None:
        process = self._started()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([astuple(case) for case in cases]) + "\n")
            process.stdin.flush()

    def _start_over(self, *, fast: bool) -> None:
        self.stop()
        self.fast = fast

    def _started(self) -> subprocess.Popen[str]:
        if self.process is None:
            # Those of the environment, also empty ones, win.
            environment = {**({"XLA_FLAGS": QUICK_XLA_FLAGS} if self.fast else {}), **os.environ}
            environment["TORCH_PJRT_CACHE_DIR"] = self.programs
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, self.device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            self.done, self.lines = 0, queue.SimpleQueue()
            assert self.process.stdout is not None
            reader = threading.Thread(
                target=_forward, args=(self.process.stdout, self.lines), daemon=True
            )
            reader.start()
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self.process.stdin.close()
            self.process = None


def _forward(stream: TextIO, lines: queue.SimpleQueue[str]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def _work(device: str) -> None:
    """The worker: a list of cases a line comes in, a result a line goes out."""
    import warnings

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what operators print is not for the parent
    os.dup2(1, 2)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        for operator, dtype, kind in json.loads(line):
            case = Case(operator, dtype, kind)
            result: dict[str, Any] = check(case, device, gaps.tolerance(case)).as_dict()
            answers.write(json.dumps(result) + "\n")
            answers.flush()


if __name__ == "__main__":
    _work(sys.argv[1])
