"""Other compilers take the user's program, and not our kernels: `torch.compile(backend="eager")`."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

BACKENDS = ["eager", "aot_eager"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def trained(device: str, backend: str | None) -> list[float]:
    """The losses of a few steps whose forward is compiled, if there is a backend, with the step around it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 24).reshape(6, 4).to(device)

    def step() -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = torch.compile(step, backend=backend) if backend else step
    return [run().item() for _ in range(3)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_is_as_on_cpu(backend: str) -> None:
    assert trained("pjrt", backend) == pytest.approx(trained("cpu", None), rel=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_function_is_one_graph(backend: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (x @ y).relu()[1:].sum()

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x, y = torch.ones(3, 3, device="pjrt"), torch.eye(3, device="pjrt")

    assert compiled(x, y).item() == 12.0
    assert x[0].tolist() == [2.0] * 3


def test_importing_pytorch_imports_no_dynamo_and_dynamo_no_jax() -> None:
    program = """
import sys, torch
assert "torch._dynamo" not in sys.modules
import torch._dynamo
assert "jax" not in sys.modules
rules = torch._dynamo.trace_rules
assert rules.__loader__ is rules.__spec__.loader
assert type(rules.__loader__).__name__ == "SourceFileLoader"
import torch_pjrt.errors
assert rules.check_file(torch_pjrt.errors.__file__).skipped
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_generated_methods_below_a_kernel_are_not_compiled() -> None:
    """Where a function that Dynamo leaves alone uploads, JAX makes dataclasses."""

    @torch._dynamo.disable(recursive=False)
    def uploads(x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, torch.tensor([1, 1], device=x.device))

    compiled = torch.compile(lambda x: uploads(x + 1), backend="eager")

    assert compiled(torch.ones(2, 1, device="pjrt")).tolist() == [[2.0], [2.0]]
