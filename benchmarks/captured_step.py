"""What a captured training step costs the host, beside calling the hand-written JAX function.

    python benchmarks/captured_step.py

A deep, narrow GPT: all overhead. Both launch without waiting; what is timed is how long the call takes to
return while the device has nothing else to do, and how much of that the thread was computing. Rounds
alternate, and medians are compared. What it costs to look for changes before each replay is the difference
to a way that is told that there are none.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import torch_pjrt
from torch_pjrt.replays.gradients import Gradients
from torch_pjrt.replays.outside import Snapshot

sys.path.insert(0, str(Path(__file__).parent / "training_steps"))

import jax_models
import jax_step
from models import WORKLOADS, Workload

NARROW = WORKLOADS["narrow-gpt"]
ROUNDS, STEPS = 15, 20
Step = Callable[[], Any]


def by_jax(workload: Workload, weights: dict[str, np.ndarray], batch: Any) -> tuple[Step, int]:
    """The step, and how many arrays it takes."""
    params, statistics = jax_models.params_from_torch(weights)
    x, targets = (jax.device_put(part.int().numpy()) for part in batch)
    train = jax_step.stepping(workload, weights)
    n_arrays = len(
        jax.tree.leaves((params, statistics, jax_step.start(workload, params), x, targets))
    )
    return lambda: train(x, targets), n_arrays


def by_torch(workload: Workload, model: torch.nn.Module, batch: Any) -> tuple[Step, Step]:
    """The step as it is, and captured; each with a model of its own."""
    x, targets = (part.to("pjrt") for part in batch)

    def made() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        mine = copy.deepcopy(model).to("pjrt")
        optimizer = workload.optimizer(mine.parameters(), capturable=True)

        def train(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss = workload.loss(mine(x), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return train

    plain, captured = made(), torch_pjrt.capture(made())
    return lambda: plain(x, targets), lambda: captured(x, targets)


def without_looking(captured: Step) -> Step:
    """The captured step, told that nothing has changed."""
    looks: list[tuple[Any, str]] = [(Snapshot, "holds"), (Gradients, "fit")]
    before = [getattr(*look) for look in looks]

    def call() -> Any:
        for of, name in looks:
            setattr(of, name, lambda *_: True)
        try:
            return captured()
        finally:
            for (of, name), look in zip(looks, before, strict=True):
                setattr(of, name, look)

    return call


def seconds_of(step: Step) -> tuple[float, float, float]:
    """Of one step: until the call returns, how much of it is computing, and until the device is done.

    Medians of a round.
    """
    host, computing, whole = [], [], []
    for _ in range(STEPS):
        start, begun = time.perf_counter(), time.thread_time()
        result = step()
        computing.append(time.thread_time() - begun)
        host.append(time.perf_counter() - start)
        float(result)
        whole.append(time.perf_counter() - start)
    return statistics.median(host), statistics.median(computing), statistics.median(whole)


def main() -> None:
    torch.manual_seed(0)
    model = NARROW.build()
    weights = {name: p.detach().numpy().copy() for name, p in model.state_dict().items()}
    batch = next(NARROW.batches())
    step, n_arrays = by_jax(NARROW, weights, batch)
    plain, captured = by_torch(NARROW, model, batch)
    steps = {
        "JAX, hand-written": step,
        "pjrt, captured": captured,
        "pjrt, captured, not looking for changes": without_looking(captured),
        "pjrt": plain,
    }
    for take in steps.values():
        for _ in range(6):
            float(take())
    rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, take in steps.items():
            rounds[name].append(seconds_of(take))
    medians = {
        n: [statistics.median(x) * 1e3 for x in zip(*r, strict=True)] for n, r in rounds.items()
    }
    table = Table(title=f"{NARROW.title}; JAX takes {n_arrays} arrays")
    for column in ("", "host, ms", "ratio", "computing, ms", "ratio", "step, ms", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    first = next(iter(medians.values()))
    for name, times in medians.items():
        pairs = zip(times, first, strict=True)
        table.add_row(name, *[cell for x, y in pairs for cell in (f"{x:.2f}", f"{x / y:.2f}")])
    Console().print(table)


if __name__ == "__main__":
    main()
