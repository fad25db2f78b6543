"""The memory of a GPT's training step on `pjrt` against hand-written JAX that donates.

    python benchmarks/memory.py

XLA says what each compiled step needs: inputs, outputs that take no input's place, and what it needs
in between. The models are those of `gpt_step.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

import gpt_in_jax as gpt
from gpt_step import BATCH, HEADS, LAYERS, LEARNING_RATE, LENGTH, VOCABULARY, WIDTH
from torch_pjrt.compile import programs
from train_gpt import GPT

PARTS = ("argument", "output", "alias", "temp")
STEPS = 4


def needs(compiled: Any) -> dict[str, int]:
    """Bytes by part, and the peak: arguments, outputs that are not aliased to them, and temporaries."""
    analysis = compiled.memory_analysis()
    sizes = {part: getattr(analysis, f"{part}_size_in_bytes") for part in PARTS}
    sizes["peak"] = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    return sizes


def of_jax(model: torch.nn.Module) -> dict[str, int]:
    """The hand-written step's."""
    weights = {name: p.numpy() for name, p in model.state_dict().items()}
    params = gpt.params_from_torch(weights)
    tokens = jnp.zeros((BATCH, LENGTH), jnp.int32)
    step = gpt.train_step.lower(params, gpt.start(params), tokens, tokens, LAYERS, HEADS)
    return needs(step.compile())


def of_ours(model: torch.nn.Module, zero_first: bool) -> dict[str, int]:
    """That of the program of one step in steady state; gradients are dropped before it or after it."""
    model.to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    found = []
    run = programs.Program.run

    def noting(program: programs.Program, *arguments: Any) -> Any:
        found.append(program)
        return run(program, *arguments)

    programs.Program.run = noting  # type: ignore[method-assign]
    for _ in range(STEPS):
        if zero_first:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens.to("pjrt")).flatten(0, 1), tokens.to("pjrt").flatten())
        loss.backward()
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()
    programs.Program.run = run  # type: ignore[method-assign]
    return needs(found[-1].compiled)


def main() -> None:
    torch.manual_seed(0)
    made = [GPT(LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY, dropout=0.0) for _ in range(3)]
    rows = {
        "JAX, hand-written, donating": of_jax(made[0]),
        "pjrt, zero_grad() before backward": of_ours(made[1], True),
        "pjrt, zero_grad() after step": of_ours(made[2], False),
    }
    base = next(iter(rows.values()))["peak"]
    print(f"MB{'':34}{''.join(f'{p:>10}' for p in [*PARTS, 'peak'])}     ratio")
    for name, sizes in rows.items():
        numbers = "".join(f"{sizes[p] / 1e6:10.2f}" for p in [*PARTS, "peak"])
        print(f"{name:36}{numbers}{sizes['peak'] / base:10.3f}")
    print(
        f"{jax.default_backend()}, {LAYERS} layers, width {WIDTH}, batch {BATCH}, length {LENGTH}"
    )


if __name__ == "__main__":
    main()
