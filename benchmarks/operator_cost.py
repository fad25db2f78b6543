"""What a lazy operator costs to record, and what a whole training step does.

    python benchmarks/operator_cost.py

An operator on 4x4 tensors takes no time to compute, so what is left is the way there. The unit is
eager CPU's `torch.add` in the same run: stretches of calls alternate, so that all see the same
weather. The tape is run, empty since no result is kept, between the stretches.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import torch_pjrt

sys.path.insert(0, str(Path(__file__).parent / "training_steps"))

from operator_stretches import OPERATORS, stretch_us

from models import WORKLOADS, read_data, write_data
from ways import Traced, by_pjrt

CALLS = 400  # in a stretch; far fewer than the tape holds before it is run


def _ones(device: str) -> torch.Tensor:
    return torch.ones(4, 4).to(device)


def operators_us(rounds: int) -> dict[tuple[str, str], list[float]]:
    """By operator and device, the cost in each round. The first round warms up and is left out."""
    costs: dict[tuple[str, str], list[float]] = {
        key: [] for key in itertools.product(OPERATORS, ("cpu", "pjrt"))
    }
    for _ in range(rounds + 1):
        for (name, device), seen in costs.items():
            seen.append(stretch_us(*OPERATORS[name], partial(_ones, device), n_calls=CALLS))
    return {key: seen[1:] for key, seen in costs.items()}


def show_operators(costs: dict[tuple[str, str], list[float]]) -> None:
    unit = costs["add", "cpu"]
    table = Table(title="One operator on 4x4 tensors; the ratio is to eager CPU's add")
    for heading in ("", "eager CPU, µs", "pjrt, µs", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in OPERATORS:
        eager, lazy = costs[name, "cpu"], costs[name, "pjrt"]
        ratio = statistics.median(a / b for a, b in zip(lazy, unit, strict=True))
        table.add_row(
            name,
            f"{statistics.median(eager):.2f}",
            f"{statistics.median(lazy):.2f}",
            f"{ratio:.2f}",
        )
    Console().print(table)


def steps_ms(steps: int) -> list[dict[str, float]]:
    """Where the host's time goes in each training step of the GPT, the device idle at its start."""
    with tempfile.TemporaryDirectory() as folder:
        write_data(WORKLOADS["gpt"], Path(folder))
        weights, batches = read_data(Path(folder))
        train = by_pjrt(WORKLOADS["gpt"], weights, Path(folder), Traced())
        turn = itertools.cycle(batches)
        for _ in range(4):
            float(train(*next(turn)))
    seen = []
    for _ in range(steps):
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
        before = torch_pjrt.report().as_dict()
        start = time.perf_counter()
        loss = train(*next(turn))
        whole = time.perf_counter() - start
        after = torch_pjrt.report().as_dict()
        loss.item()
        spent = {name: after[name] - before[name] for name in ("operators", "sync_s", "launch_s")}
        assert after["programs_compiled"] == before["programs_compiled"]
        seen.append(
            {
                "operators": spent["operators"],
                "tracing": (whole - spent["launch_s"]) * 1e3,
                "of that, sync": (spent["sync_s"] - spent["launch_s"]) * 1e3,
                "launch": spent["launch_s"] * 1e3,
            }
        )
    return seen


def show_steps(seen: list[dict[str, float]]) -> None:
    medians = {name: statistics.median(step[name] for step in seen) for name in seen[0]}
    table = Table(title="Host time of a whole training step of the GPT")
    for name in ("operators", "tracing, ms", "of that, sync, ms", "launch, ms", "tracing, µs each"):
        table.add_column(name, justify="right")
    table.add_row(
        f"{medians['operators']:.0f}",
        f"{medians['tracing']:.1f}",
        f"{medians['of that, sync']:.1f}",
        f"{medians['launch']:.1f}",
        f"{medians['tracing'] / medians['operators'] * 1e3:.1f}",
    )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of recording operators.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    show_operators(operators_us(arguments.rounds))
    show_steps(steps_ms(arguments.steps))


if __name__ == "__main__":
    main()
