"""Worker processes that check cases, one operator and dtype at a time.

A case may end its process or never end: each worker is watched, and such a case is tried once more in
the ordinary way before it counts as failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field
from itertools import groupby
from typing import Any, TextIO

from torch_pjrt.testing.conformance import gaps
from torch_pjrt.testing.conformance.cases import Case
from torch_pjrt.testing.conformance.check import Result, check

_UNITS = 60  # after so many, a worker makes room for a fresh one: programs stay in memory
_FAST_S, _ORDINARY_S = 40, 3600  # how long a case may take
_SLOW_WHEN_FAST = ("max_pool2d_with_indices_backward", "nn.functional.max_pool2d")
# Compiling takes most of the time: without LLVM's optimizations and with XLA's simpler emitters, a
# twentieth of it; but those take forever over some programs. `XLA_FLAGS` of the environment, also
# an empty one, wins.
_XLA_FLAGS = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    )
)


def check_all(cases: Iterable[Case], device: str, n_workers: int) -> Iterator[Result]:
    """The results of all cases, as they come."""
    units: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
    for _, unit in groupby(cases, key=lambda case: (case.operator, case.dtype)):
        units.put(list(unit))
    results: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    shepherds = [
        threading.Thread(target=_shepherd, args=(units, results, device), daemon=True)
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


def _shepherd(
    units: queue.SimpleQueue[list[Case]],
    results: queue.SimpleQueue[Result | None],
    device: str,
) -> None:
    """Feed units to a worker, and get another one when it ends, hangs or has done enough."""
    worker = _Worker(device)
    try:
        while True:
            with contextlib.suppress(queue.Empty):
                unit = units.get_nowait()
                for result in worker.check(unit):
                    results.put(result)
                continue
            return
    finally:
        worker.stop()
        results.put(None)


@dataclass(slots=True)
class _Worker:
    device: str
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
                try:
                    line = self.lines.get(timeout=_FAST_S if self.fast else _ORDINARY_S)
                except queue.Empty:
                    line = ""
                if line:
                    result = Result(**json.loads(line))
                elif self.fast:
                    self._start_over(fast=False)
                    break
                else:
                    result = Result(*astuple(waiting[0]))
                    result.fail("its process ended, or took too long")
                waiting.pop(0)
                yield result
                if not self.fast and waiting:
                    break
        if not self.fast:
            self._start_over(fast=True)
        self.done += 1
        if self.done >= _UNITS:
            self.stop()

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
            environment = {**({"XLA_FLAGS": _XLA_FLAGS} if self.fast else {}), **os.environ}
            environment["TORCH_PJRT_CACHE_DIR"] = (
                ""  # thousands of programs that nobody needs again
            )
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
            self.process = None


def _forward(stream: TextIO, lines: queue.SimpleQueue[str]) -> None:
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
