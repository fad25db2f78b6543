"""`solve FILE --seconds N`: the choice, as the last line on stdout, within N seconds of wall clock in all.

Everything else goes to stderr. SIGTERM and SIGINT (Ctrl-C) end it sooner, with the best choice so far. Exit
codes: 0 a choice was found, 1 none within the limit, 2 the file or the command cannot be read.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch_pjrt_spmd.autoshard.solver import Infeasible, Solution, UnreadableProblem, read, solve
from torch_pjrt_spmd.autoshard.solver.compiled import IS_FAST

WORDS = "solve a problem of auto-sharding from a file"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the problem: JSON, plain or gzip")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="wall clock in all, reading included (60)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--progress", action="store_true", help="print each better cost and bound to stderr"
    )


def run(options: argparse.Namespace) -> int:
    began = time.monotonic() - seconds_of_process()
    with ends_on_signals() as stop:
        return _solved(options, began, stop)


def _solved(options: argparse.Namespace, began: float, stop: threading.Event) -> int:
    try:
        problem = read(options.file)
    except (UnreadableProblem, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    told = time.monotonic() - began

    def tell(seconds: float, cost: int | None, bound: int | None) -> None:
        print(f"{told + seconds:8.2f} s  cost {cost}  at least {bound}", file=sys.stderr)

    if not IS_FAST:
        print("numba is not installed, so the search is some hundred times slower", file=sys.stderr)
    left = options.seconds - (time.monotonic() - began) - margin(options.seconds)
    watcher = tell if options.progress else None
    try:
        solution = solve(problem, left, seed=options.seed, watcher=watcher, stop=stop)
    except Infeasible as error:
        print(f"Infeasible: {error}", file=sys.stderr)
        return 1
    print(solution.choice.tolist(), flush=True)
    with suppress(OSError):  # the choice counts, whoever reads the rest
        if solution.failure is not None:
            print(f"the search ended early: {solution.failure!r}", file=sys.stderr)
        peak = problem.peak(solution.choice)
        print(in_words(solution, peak, problem.usage_limit), file=sys.stderr, flush=True)
    os._exit(0)  # what Python tidies up at its end may take as long as the margin


@contextmanager
def ends_on_signals() -> Iterator[threading.Event]:
    """Set by the first SIGTERM or SIGINT: what is known then is printed. The second one ends the process.

    Handlers that were there are set again at the end.
    """
    stop = threading.Event()
    before: dict[int, Any] = {}

    def handle(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def in_words(solution: Solution, peak: int, limit: int | None) -> str:
    proven = "which is the least" if solution.proven else f"at least {solution.lower_bound}"
    return f"cost {solution.cost}, {proven}; memory {peak} of {limit}; {solution.seconds:.1f} s"


def margin(seconds: float) -> float:
    """What is kept of the time for the end: writing the answer, and a machine that is busy."""
    return min(0.5 + 0.04 * seconds, 5.0, 0.3 * seconds)


def seconds_of_process() -> float:
    """How long this process has run: Python's start and its imports."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, up - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.5
