"""The memory of a GPT's training step on `pjrt` against hand-written JAX that donates.

    python benchmarks/memory.py

XLA says what each compiled step needs: inputs, outputs that take no input's memory, and what it needs
in between. The model is the first of `training_steps/models.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "training_steps"))

import jax
import jax.numpy as jnp
import torch

import jax_models
import jax_step
from models import WORKLOADS
from torch_pjrt.compile import programs

GPT = WORKLOADS["gpt"]
PARTS = ("argument", "output", "alias", "temp")
STEPS = 4


def needs(compiled: Any) -> dict[str, int]:
    """Bytes by part, and the peak: arguments, outputs that are not aliased to them, and temporaries."""
    analysis = compiled.memory_analysis()
    sizes = {part: getattr(analysis, f"{part}_size_in_bytes") for part in PARTS}
    sizes["peak"] = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    return sizes


def of_jax(model: torch.nn.Module, batch: Any) -> dict[str, int]:
    """The hand-written step's."""
    weights = {name: p.numpy() for name, p in model.state_dict().items()}
    params, statistics = jax_models.params_from_torch(weights)
    state = jax_step.start(GPT, params)
    tokens, targets = (jnp.asarray(part.int().numpy()) for part in batch)
    step = jax_step.train_step(GPT).lower(params, statistics, state, tokens, targets)
    return needs(step.compile())


def of_ours(model: torch.nn.Module, batch: Any, zero_first: bool) -> dict[str, int]:
    """That of the program of one step in steady state; gradients are dropped before it or after it."""
    model.to("pjrt")
    optimizer = GPT.optimizer(model.parameters())
    found = []
    run = programs.Program.run

    def noting(program: programs.Program, *arguments: Any) -> Any:
        found.append(program)
        return run(program, *arguments)

    programs.Program.run = noting  # type: ignore[method-assign]
    for _ in range(STEPS):
        if zero_first:
            optimizer.zero_grad()
        tokens, targets = (part.to("pjrt") for part in batch)
        loss = GPT.loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()
    programs.Program.run = run  # type: ignore[method-assign]
    return needs(found[-1].compiled)


def main() -> None:
    torch.manual_seed(0)
    made = [GPT.build() for _ in range(3)]
    batch = next(GPT.batches())
    rows = {
        "JAX, hand-written, donating": of_jax(made[0], batch),
        "pjrt, zero_grad() before backward": of_ours(made[1], batch, True),
        "pjrt, zero_grad() after step": of_ours(made[2], batch, False),
    }
    base = next(iter(rows.values()))["peak"]
    print(f"MB{'':34}{''.join(f'{p:>10}' for p in [*PARTS, 'peak'])}     ratio")
    for name, sizes in rows.items():
        numbers = "".join(f"{sizes[p] / 1e6:10.2f}" for p in [*PARTS, "peak"])
        print(f"{name:36}{numbers}{sizes['peak'] / base:10.3f}")
    print(f"{jax.default_backend()}; {GPT.title}")


if __name__ == "__main__":
    main()
