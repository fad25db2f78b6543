"""Other compilers take the user's program, and not our kernels: `torch.compile(backend="eager")`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.device import tracers

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


@pytest.mark.slow
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


def trained_once(x: torch.Tensor) -> None:
    model = nn.Linear(3, 3, device="pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).square().mean().backward()
    optimizer.step()


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "upload": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "upload of an array": lambda x: torch.from_numpy(np.ones(3)).to(x.device),
    "read": lambda x: x.sum().item(),
    "read of a list": lambda x: x.tolist(),
    "read of an array": lambda x: x.cpu().numpy(),
    "random numbers": torch.rand_like,
    "number of results": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "several results": lambda x: x.sort(),
    "indexed assignment": lambda x: x.__setitem__((0,), 1.0),
    "copy of a tensor from the CPU": lambda x: x.copy_(torch.ones(3, 3)),
    "linear algebra": torch.linalg.svd,
    "operator on the CPU": lambda x: torch.ops.aten._add_relu.Tensor(x, x),
    "list of tensors": lambda x: torch._foreach_add([x, x], 1.0),
    "vmap": torch.func.vmap(torch.sin),
    "synchronize": lambda x: torch.pjrt.synchronize(),  # type: ignore[attr-defined]
    "training": trained_once,
}


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")  # one of them does
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_nothing_that_a_kernel_calls_is_compiled(
    call: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Dynamo gives a function up, it watches all that it calls: the standard library's frames, too."""
    convert = torch._dynamo.convert_frame.ConvertFrame.__call__
    ours = Path(torch_pjrt.__file__).parent
    parts = tuple(str(ours / part) + os.sep for part in tracers.PARTS)
    begun: list[str] = []

    def noting(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        while caller is not None and not caller.f_code.co_filename.startswith(parts):
            caller = caller.f_back
        if caller is not None:
            begun.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        return convert(self, frame, *args, **kwargs)

    monkeypatch.setattr(torch._dynamo.convert_frame.ConvertFrame, "__call__", noting)

    def given_up(x: torch.Tensor) -> None:
        for _ in range(2):
            torch._dynamo.graph_break()
            call(x)

    torch.compile(given_up, backend="eager")(torch.ones(3, 3, device="pjrt"))

    assert begun == []
