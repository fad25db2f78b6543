"""A plan that is applied gives the losses of one chip, and a program like the one that was estimated."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import small_gpt  # pyright: ignore[reportMissingImports]
import torch
import torch.nn.functional as F
from torch import nn

from torch_pjrt_spmd import Mesh, Plan, auto_shard, mark_sharding, sharding_of
from torch_pjrt_spmd.exchanges import noted_programs

BATCH, LENGTH = small_gpt.BATCH, small_gpt.LENGTH


def trained(
    mesh: Mesh | None, n_steps: int = 3, n_layers: int = 3, **options: Any
) -> tuple[list[float], Plan | None]:
    """Losses of some steps, each on other tokens."""
    torch.manual_seed(0)
    model = small_gpt.Gpt(n_layers).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    plan = None
    if mesh is not None:
        tokens = torch.empty(BATCH, LENGTH, dtype=torch.int64)
        plan = auto_shard(step, (tokens, tokens), mesh, seconds=20, **options)
    host = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(n_steps):
        text = torch.randint(0, small_gpt.VOCABULARY, (BATCH, LENGTH + 1), generator=host)
        parts = (text[:, :-1].contiguous(), text[:, 1:].contiguous())
        x, y = plan.place(*parts) if plan is not None else (t.to("pjrt") for t in parts)
        losses.append(step(x, y))
    return [loss.item() for loss in losses], plan


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The models of the benchmark, and steps of them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "benchmarks"))
    yield import_module("autoshard")
    sys.modules.pop("autoshard")


@pytest.mark.parametrize("n_layers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_losses_are_those_of_one_chip(n_layers: int) -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    _, roomy = trained(mesh, 0, n_layers, chip="v5e")
    assert roomy is not None

    # So small a model is fastest where nothing is spread; with half the memory it has to be.
    limit = roomy.memory.peak // 2
    losses, plan = trained(mesh, 3, n_layers, chip="v5e", memory_per_device=limit)

    assert losses == pytest.approx(trained(None, 3, n_layers)[0], rel=2e-5)
    assert plan is not None and plan.exchanges


@pytest.mark.slow
def test_losses_of_layers_that_are_computed_again_are_the_same() -> None:
    mesh = Mesh((8,), ("data",))
    _, roomy = trained(mesh, n_steps=0, chip="v5e")
    assert roomy is not None

    limit = int(0.75 * roomy.memory.peak)
    losses, plan = trained(mesh, chip="v5e", memory_per_device=limit)

    assert plan is not None and len(plan.rematerialized) == 3
    assert losses == pytest.approx(trained(None)[0], rel=2e-5)


_ran: dict[str, tuple[Plan, Any, Any]] = {}


def ran(name: str, benchmark: Any) -> tuple[Plan, Any, Any]:
    """A model's plan, the program that ran, and both compared."""
    if name not in _ran:
        _, plan = benchmark.steps_of(name, Mesh((2, 4), ("data", "model")), n_steps=2)
        _ran[name] = plan, noted_programs()[-1].compiled, plan.compare()
    return _ran[name]


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        (
            "MLP",
            1.25,
        ),  # more than XLA needs since virtual chips run by the schedule that saves memory
        pytest.param("GPT, 4 layers of 128", 0.90, marks=pytest.mark.slow),
        pytest.param("ViT, 4 layers of 128", 1.05, marks=pytest.mark.slow),
        pytest.param("ResNet-18, a fourth as wide", 1.10, marks=pytest.mark.slow),
        pytest.param("MoE, 8 experts", 1.23, marks=pytest.mark.slow),
    ],
)
def test_estimates_beside_what_xla_says(name: str, memory: float, benchmark: Any) -> None:
    """Products, and memory by how much of what XLA needs is planned."""
    plan, compiled, _ = ran(name, benchmark)

    analysis = compiled.memory_analysis()
    needed = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
    assert plan.flops == pytest.approx(compiled.cost_analysis()["flops"], rel=0.15)
    assert plan.memory.peak / needed == pytest.approx(memory, abs=0.05)


def test_program_exchanges_what_was_planned(benchmark: Any) -> None:
    plan, _, comparison = ran("MLP", benchmark)

    assert "planned" in str(comparison)
    assert comparison.compiled_s == pytest.approx(plan.exchanged_s, rel=0.3)
    # XLA for CPUs adds up whole gradients, and takes a part of them.
    others = [r for r in comparison.differences if r.kind not in ("all-reduce", "reduce-scatter")]
    assert not others


def test_gradients_lie_as_planned() -> None:
    mesh = Mesh((8,), ("data",))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4096, 256)
    plan = auto_shard(model, x, mesh, optimizer=optimizer, chip="v5e", seconds=1)

    model(plan.place(x)).sum().backward()
    optimizer.step()

    assert _spec_of_gradient(model) == plan.gradients["0.weight"]


def test_gradients_lie_as_planned_where_no_optimizer_asks_for_it() -> None:
    mesh = Mesh((8,), ("data",))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to("pjrt")
    x = torch.randn(4096, 256)
    plan = auto_shard(model, x, mesh, optimizer=torch.optim.AdamW(model.parameters()), chip="v5e")
    other = copy.deepcopy(model)
    replace(plan, gradients={"0.weight": ("data", None)}).apply(other)
    other(plan.place(x)).sum().backward()

    assert _spec_of_gradient(other) == ("data", None)


def _spec_of_gradient(model: nn.Sequential) -> Any:
    weight: Any = model[0].weight
    assert weight.grad is not None
    how = sharding_of(weight.grad)
    return None if how is None else how.spec


def test_own_marks_are_kept() -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to("pjrt")
    weight: Any = model[0].weight
    mark_sharding(weight, mesh, (None, "data"))

    plan = auto_shard(
        model, torch.empty(64, 64), mesh, optimizer=torch.optim.AdamW, chip="v5e", seconds=1
    )

    assert plan.spec("0.weight") == (None, "data")
    how = sharding_of(weight)
    assert how is not None and how.spec == (None, "data")


def test_model_of_the_host_goes_to_the_chips_part_by_part() -> None:
    mesh = Mesh((8,), ("model",))
    model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False))
    expected = model(torch.ones(8, 256)).detach()

    plan = auto_shard(
        model, torch.empty(8, 256), mesh, chip="v5e", seconds=1, memory_per_device=700_000
    )

    assert model[0].weight.device.type == "pjrt"
    assert plan.memory.peak <= 700_000
    torch.testing.assert_close(
        model(plan.place(torch.ones(8, 256))).cpu(), expected, rtol=1e-4, atol=1e-5
    )
