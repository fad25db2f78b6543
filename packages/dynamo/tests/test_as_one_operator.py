"""A compiled graph is an operator like others: rolled, kept on disk, with lines of the user's program."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.extend import counters, forget_programs, graph_of, state
from torch_pjrt.graph import signature  # noqa: TID251
from torch_pjrt.passes import Expand  # noqa: TID251
from torch_pjrt_dynamo import recorded_graph


class Scaled(nn.Module):
    """A module of the user's, which has lines of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 2)


def deep(n_layers: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(n_layers)]
    return nn.Sequential(*layers).to("pjrt")


def test_its_nodes_have_lines_and_modules() -> None:
    model = torch.compile(nn.Sequential(Scaled()).to("pjrt"), backend="pjrt")
    x = torch.ones(2, 8, device="pjrt")
    torch_pjrt.sync()

    with torch.no_grad():
        result = model(x)
    nodes = Expand()(graph_of(state.tape, [])).nodes

    lines = [n.line for n in nodes if n.line is not None]
    assert {line.function for line in lines} == {"forward"}
    assert {Path(line.file).name for line in lines} == {"test_as_one_operator.py"}
    assert any(line.module.endswith("0/inner") for line in lines)
    assert result.shape == (2, 8)


def test_its_layers_are_rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pjrt.config, "roll_layers", "on")
    model = deep(6)
    compiled = torch.compile(model, backend="pjrt")
    x = torch.linspace(-1, 1, 16).reshape(2, 8).to("pjrt")
    before = counters.loops

    with torch.no_grad():
        saw = compiled(x).cpu()

    assert counters.loops > before
    torch.testing.assert_close(saw, model.cpu()(x.cpu()).detach())


def test_its_program_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pjrt.config, "cache_dir", tmp_path)
    x = torch.ones(2, 8, device="pjrt")
    model = deep(1)
    torch_pjrt.sync()
    results: list[Any] = []
    loaded = []

    for _ in range(2):
        torch._dynamo.reset()
        forget_programs()
        before = counters.programs_loaded
        with torch.no_grad():
            results.append(torch.compile(model, backend="pjrt")(x).cpu())
        loaded.append(counters.programs_loaded - before)

    assert loaded == [0, 1]
    assert torch.equal(*results)


def test_graphs_that_nobody_has_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device="pjrt")
    torch.compile(lambda x: x * 2.0, backend="pjrt")(x).cpu()
    n_known = len(recorded_graph._known)
    monkeypatch.setattr(signature._interned, "most", 8)

    for n in range(24):
        torch._dynamo.reset()
        torch.compile(lambda x, n=n: x * (n + 0.25), backend="pjrt")(x).cpu()
    torch._dynamo.reset()
    forget_programs()
    gc.collect()

    assert len(recorded_graph._known) - n_known < 12
