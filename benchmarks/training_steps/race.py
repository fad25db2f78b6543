"""Contestants in turns: each is started cold, then again with what it left on disk; then rounds of steps."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ways import WAYS

HERE = Path(__file__).parent
COMPARED_STEPS = 5
SINGLE_STEPS = 5


@dataclass
class Result:
    """What was measured of a contestant. Seconds run from the start of its process.

    first_s, again_s   to the end of the first step: with caches on disk empty, and in a later process.
    call_s, call_again_s   the first step alone, without the imports and the model.
    preparing_s   what the first six steps, cold, took more than six steps take: all tracing and compiling.
    step_ms   one step of several that were not waited for, by round; `host_ms` until a call returns while the
              device has nothing else to do, `trace_ms` of it the recording.
    programs  how many programs of ours ran for a step.
    peak_mb   the most memory during steps.
    """

    way: str
    first_s: float = 0.0
    again_s: float = 0.0
    call_s: float = 0.0
    call_again_s: float = 0.0
    preparing_s: float = 0.0
    losses: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    trace_ms: list[float] = field(default_factory=list)
    programs: float = 0.0
    peak_mb: float = 0.0


class Stopped(RuntimeError):
    """A contestant's process ended by itself."""


class Contestant:
    """A running process."""

    def __init__(self, workload: str, way: str, data: Path) -> None:
        self.way = way
        python = os.environ.get(WAYS[way].python, sys.executable)
        command = [python, str(HERE / "contestant.py"), workload, way, str(data)]
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the contestant
        self.start = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env=WAYS[way].environment(),
        )

    def ask(self, question: str) -> dict[str, Any]:
        """What it answers to a line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        status = self.process.wait()
        self.complaints.seek(0)
        lines = self.complaints.read().strip().splitlines()
        raise Stopped(f"stopped with status {status}: {lines[-1] if lines else ''}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.complaints.close()


def why_not(way: str) -> str:
    """Why this machine cannot run a way; empty if it can."""
    return "; ".join(f"{name} is not set" for name in WAYS[way].missing())


def start(workload: str, way: str, data: Path) -> tuple[Result, Contestant]:
    """Start a contestant cold, then in a process that finds what the first one left; that one stays."""
    result = Result(way)
    cold = Contestant(workload, way, data)
    try:
        result.call_s = cold.ask("first")["seconds"]
        result.first_s = time.perf_counter() - cold.start
        # It may compile, and so keep, more than one program.
        result.preparing_s = result.call_s + cold.ask(f"steps {COMPARED_STEPS}")["seconds"]
    finally:
        cold.stop()
    contestant = Contestant(workload, way, data)
    first = contestant.ask("first")
    result.call_again_s = first["seconds"]
    result.again_s = time.perf_counter() - contestant.start
    rest = contestant.ask(f"steps {COMPARED_STEPS - 1}")
    result.losses = first["losses"] + rest["losses"]
    return result, contestant


def race(
    workload: str, ways: Sequence[str], rounds: int, steps: int, data: Path
) -> tuple[list[Result], dict[str, str]]:
    """Measure each way; those that stopped before they had taken a step, and why."""
    running: list[tuple[Result, Contestant]] = []
    stopped = {}
    try:
        for way in ways:
            print(f"{workload}: {WAYS[way].title} ...", file=sys.stderr, flush=True)
            try:
                running.append(start(workload, way, data))
            except Stopped as error:
                stopped[way] = str(error)
        for _, contestant in running:
            contestant.ask(f"steps {3 * steps}")
        for _ in range(rounds):
            for result, contestant in running:
                result.step_ms.append(contestant.ask(f"steps {steps}")["seconds"] / steps * 1e3)
                single = contestant.ask(f"single {SINGLE_STEPS}")
                result.host_ms.append(single["host_ms"])
                result.programs = single["programs"]
                if single["trace_ms"] is not None:
                    result.trace_ms.append(single["trace_ms"])
        for result, contestant in running:
            result.preparing_s -= (1 + COMPARED_STEPS) * statistics.median(result.step_ms) / 1e3
            result.peak_mb = contestant.ask(f"memory {steps}")["peak_mb"]
    finally:
        for _, contestant in running:
            contestant.stop()
    return [result for result, _ in running], stopped


def ratio(result: Result, base: Result) -> float:
    """The median, over rounds, of how many times longer a step takes."""
    return statistics.median(
        mine / its for mine, its in zip(result.step_ms, base.step_ms, strict=True)
    )


def disagreement(result: Result, base: Result) -> float:
    """The largest relative difference of the first losses."""
    return max(abs(mine - its) / its for mine, its in zip(result.losses, base.losses, strict=True))


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """All that was measured, for a file."""
    return [asdict(result) for result in results]
