"""The benchmark of Llama's layers counts the FLOPs of a step as XLA counts those of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixture_types import Run

FOLDER = Path(__file__).parents[2] / "benchmarks" / "llama_layers"

COUNTS = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import jax, jax.numpy as jnp, torch
from llama import Sizes, flops_of_a_step, model_of, step_of

sizes = Sizes(layers=1, width=256, heads=4, inner=704, vocabulary=1024, length=256)
wanted = flops_of_a_step(sizes, causal=False)
"""

BY_JAX = """
from llama_jax import params_of, train_step

params = jax.eval_shape(lambda: params_of(sizes))
batch = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32)
step = train_step(sizes, fused=False, checkpointed=False)
compiled = step.lower(params, (params, params), jnp.zeros(()), batch, batch).compile()
print(compiled.cost_analysis()["flops"] / wanted)
"""

BY_US = """
import torch_pjrt
from torch_pjrt.compile import programs
from torch_pjrt.diagnostics.cost import cost_of

step = step_of(model_of(sizes, "pjrt", checkpointed=False))
found = []
run = programs.Program.run

def noting(program, *arguments):
    found.append(cost_of(program.compiled).flops)
    return run(program, *arguments)

programs.Program.run = noting
tokens = torch.zeros(sizes.batch, sizes.length, dtype=torch.int64)
del found[:]
step(tokens.to("pjrt"), tokens.to("pjrt")).item()
print(sum(found) / wanted)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", [BY_JAX, BY_US], ids=["hand-written", "ours"])
def test_count_is_that_of_the_products_and_xla_counts_a_little_more(python: Run, way: str) -> None:
    share = float(python(COUNTS + way).stdout.split()[-1])

    assert 1.0 < share < 1.15  # softmax, norms, AdamW
