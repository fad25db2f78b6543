"""What a captured training step costs the host, beside calling the hand-written JAX function.

    python benchmarks/captured_step.py

A deep, narrow GPT: all overhead. Both launch without waiting; what is timed is how long the call takes to
return while the device has nothing else to do. Rounds alternate, and medians are compared.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import torch_pjrt

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

LAYERS, WIDTH, HEADS, BATCH, LENGTH, VOCABULARY = 12, 32, 4, 2, 16, 64
ROUNDS, STEPS = 15, 20
Step = Callable[[], Any]


def jax_step(weights: dict[str, np.ndarray], batch: np.ndarray) -> tuple[Step, int]:
    import gpt_in_jax as gpt

    params = gpt.params_from_torch(weights)
    state = gpt.start(params)
    tokens, targets = jax.device_put(batch[:, :-1]), jax.device_put(batch[:, 1:])

    def step() -> Any:
        nonlocal params, state
        params, state, loss = gpt.train_step(params, state, tokens, targets, LAYERS, HEADS)
        return loss

    return step, len(jax.tree.leaves((params, state))) + 2


def torch_steps(weights: dict[str, np.ndarray], batch: np.ndarray) -> tuple[Step, Step]:
    """The step as it is, and captured; each with a model of its own."""
    from train_gpt import GPT

    def made() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        model = GPT(LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY, dropout=0.0)
        model.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
        model.to("pjrt")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=True)

        def train(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return train

    tokens, targets = (torch.from_numpy(x).long().to("pjrt") for x in (batch[:, :-1], batch[:, 1:]))
    plain, captured = made(), torch_pjrt.capture(made())
    return lambda: plain(tokens, targets), lambda: captured(tokens, targets)


def seconds_of(step: Step) -> tuple[float, float]:
    """Of one step: until the call returns, and until the device is done. Medians of a round."""
    host, whole = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        result = step()
        host.append(time.perf_counter() - start)
        float(result)
        whole.append(time.perf_counter() - start)
    return statistics.median(host), statistics.median(whole)


def main() -> None:
    from train_gpt import GPT

    torch.manual_seed(0)
    model = GPT(LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY, dropout=0.0)
    weights = {n: p.detach().numpy().copy() for n, p in model.state_dict().items()}
    batch = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)
    by_jax, n_arrays = jax_step(weights, batch)
    plain, captured = torch_steps(weights, batch)
    steps = {"JAX, hand-written": by_jax, "pjrt, captured": captured, "pjrt": plain}
    for step in steps.values():
        for _ in range(6):
            float(step())
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            rounds[name].append(seconds_of(step))
    medians = {
        n: [statistics.median(x) * 1e3 for x in zip(*r, strict=True)] for n, r in rounds.items()
    }
    table = Table(
        title=f"A training step of a narrow GPT, {LAYERS} layers; JAX takes {n_arrays} arrays"
    )
    for column in ("", "host, ms", "ratio", "step, ms", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    first = next(iter(medians.values()))
    for name, (host, whole) in medians.items():
        cells = f"{host:.2f}", f"{host / first[0]:.2f}", f"{whole:.1f}", f"{whole / first[1]:.2f}"
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
