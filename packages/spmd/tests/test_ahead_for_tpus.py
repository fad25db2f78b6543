"""A marked step compiles for a slice of TPUs that are not here, with the collectives expected by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_pjrt
from torch_pjrt_spmd import Mesh, auto_shard, distribute_tensor
from torch_pjrt_spmd.reporting import reports_of

TARGET, N_CHIPS = "v5e:4x4", 16
FLOAT = 4  # bytes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("libtpu") is None, reason="libtpu is not installed (`hatch run aot:run` does)"
    ),
]


@pytest.fixture
def small_gpt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "eight_chips"))
    import small_gpt  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(small_gpt.Block, "spread", None)
    yield small_gpt
    sys.modules.pop("small_gpt")


@pytest.mark.parametrize(
    "way", ["data_parallel", "tensor_parallel", "sequence_parallel", "fully_sharded"]
)
def test_training_step_has_the_collectives_of_its_way(way: str, small_gpt: Any) -> None:
    model = small_gpt.Gpt().to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    mesh, spec = getattr(small_gpt, way)(model, TARGET, N_CHIPS)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    text = torch.empty(N_CHIPS, small_gpt.LENGTH, dtype=torch.int64, device="meta")
    x, y = (distribute_tensor(text, mesh, spec) for _ in range(2))

    found = torch_pjrt.compile_for(TARGET, step, x, y)

    all_parameters = sum(p.nbytes for p in model.parameters())
    n_summed, summed = found.collectives["all-reduce"]
    assert found.n_chips == N_CHIPS
    if way == "data_parallel":
        assert summed == all_parameters + 2 * FLOAT  # the sum of losses, and how many
        assert set(found.collectives) == {"all-reduce"}
    if way == "tensor_parallel":
        # Four of activations in each of two blocks along `model`, one or two of gradients along `data`.
        activation = FLOAT * N_CHIPS // 4 * small_gpt.LENGTH * small_gpt.WIDTH
        assert 9 <= n_summed <= 10
        assert 8 * activation < summed < 8 * activation + all_parameters // 2
        assert set(found.collectives) == {"all-reduce"}
    if way == "sequence_parallel":
        # The same, on the part of the sequence that a chip has; keys and values are gathered.
        [report] = reports_of([found])
        assert report.replicated_along["sequence"] < 0.1
        of_model = [c for c in report.collectives if c.axes == ("model",)]
        activation = FLOAT * N_CHIPS // 4 * small_gpt.LENGTH // 2 * small_gpt.WIDTH
        assert {c.kind for c in of_model} == {"all-reduce"}
        assert sum(c.runs * c.n_bytes for c in of_model) == 8 * activation
        assert found.collectives["all-gather"][0] <= 10
    if way == "fully_sharded":
        # Of parameters and AdamW's two moments each chip has a part; small ones are padded there.
        assert found.argument_bytes < all_parameters
        assert found.collectives["all-gather"][1] >= all_parameters * 0.9
    assert "What chips exchange" in str(found)


def test_mesh_may_have_two_axes_along_one_direction_of_the_hardware() -> None:
    mesh = Mesh.for_target(TARGET, (4, 2, 2), ("data", "sequence", "model"))

    assert sorted(mesh.order) == list(range(N_CHIPS))


def test_plan_for_a_slice_is_near_what_is_compiled(small_gpt: Any) -> None:
    model = small_gpt.Gpt(3).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    mesh = Mesh.for_target(TARGET, (4, 4), ("data", "model"))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    text = torch.empty(64, small_gpt.LENGTH, dtype=torch.int64, device="meta")
    plan = auto_shard(step, (text, text), mesh, seconds=2)
    x, y = plan.place(text, text)

    found = torch_pjrt.compile_for(TARGET, step, x, y)

    [report] = reports_of([found])
    assert plan.figures.name == "v5e"
    assert found.n_chips == N_CHIPS
    assert report.replicated < 0.1
    assert "planned" in str(plan.compare(report))
