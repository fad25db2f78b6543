"""What `torch.utils.checkpoint` computes again is computed again: activations are not kept for backward."""

from __future__ import annotations

import pytest

from fixture_types import Run

pytestmark = pytest.mark.slow

CODE = """
import torch, torch_pjrt
from torch.utils.checkpoint import checkpoint
from torch_pjrt.compile import programs
from torch_pjrt.diagnostics.cost import cost_of

torch_pjrt.config.roll_layers = "on"

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 1024), torch.nn.Linear(1024, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))

def step(call):
    torch.manual_seed(0)
    model = torch.nn.ModuleList(Layer() for _ in range(6)).to("pjrt")
    x = torch.randn(512, 64).to("pjrt").requires_grad_()
    del needed[:]
    y = x
    for layer in model:
        y = call(layer, y)
    y.square().sum().backward()
    gradients = torch.stack([p.grad.norm() for p in model.parameters()]).cpu()
    return gradients, max(needed)

run, needed = programs.Program.run, []

def noting(program, *arguments):
    needed.append(cost_of(program.compiled).temporary_bytes)
    return run(program, *arguments)

programs.Program.run = noting
plain, kept = step(lambda layer, x: layer(x))
again, least = step(lambda layer, x: checkpoint(layer, x, use_reentrant=REENTRANT))
torch.testing.assert_close(plain, again)
print(least / kept)
"""


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_need_less_than_half_of_the_memory(
    python: Run, reentrant: bool
) -> None:
    done = python(CODE.replace("REENTRANT", str(reentrant)))

    assert float(done.stdout) < 0.5
