"""A step that is marked for chips that are not here compiles for them as one that is marked for those here.

The target is a stand-in: eight chips of another CPU client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.errors import SettingError
from torch_pjrt.extend import client
from torch_pjrt.plugin import separate_cpu_chips
from torch_pjrt_spmd import (
    Mesh,
    ShardingError,
    distribute_tensor,
    mark_sharding,
    parallelize_module,
    sharding_of,
    use_mesh,
)

FAR = "far:8"
FLOAT, INDEX = 4, 8  # bytes


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def chips(self: object, target: str) -> Any:
        return separate_cpu_chips() if target.startswith("far:") else None

    monkeypatch.setattr(type(client().device), "compile_only_chips", chips)
    yield


def two_layers() -> tuple[nn.Linear, nn.Linear, Callable[[torch.Tensor], torch.Tensor]]:
    up, down = nn.Linear(16, 64).to("pjrt"), nn.Linear(64, 16).to("pjrt")
    optimizer = torch.optim.AdamW([*up.parameters(), *down.parameters()])

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = down(up(x).relu()).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return up, down, step


def spread(up: nn.Linear, down: nn.Linear, mesh: Mesh) -> None:
    mark_sharding(up.weight, mesh, ("model", None))
    mark_sharding(up.bias, mesh, ("model",))
    mark_sharding(down.weight, mesh, (None, "model"))


# Of each chip of the mesh (2, 4): three of each parameter with AdamW's state, and its part of the batch.
PARAMETERS = 64 * 16 // 4 + 64 // 4 + 64 * 16 // 4 + 16
BATCH = 32 // 2 * 16
N_PARAMETERS = 4


@pytest.mark.parametrize("by", ["a mesh of the target", "a mesh of this process"])
def test_a_chip_has_its_parts_of_parameters_of_the_state_and_of_the_batch(by: str) -> None:
    up, down, step = two_layers()
    shape, names = (2, 4), ("data", "model")
    there = Mesh.for_target(FAR, shape, names)
    spread(up, down, there if by == "a mesh of the target" else Mesh(shape, names))
    x = distribute_tensor(torch.empty(32, 16, device="meta"), there, ("data",))

    found = torch_pjrt.compile_for(FAR, step, x)

    counted = found.argument_bytes - FLOAT * (3 * PARAMETERS + BATCH)
    assert 0 <= counted <= N_PARAMETERS * FLOAT + 64  # the optimizer's counts of steps, and numbers
    assert found.n_chips == 8
    # Of activations over `model`, of gradients and the loss over `data`.
    assert set(found.collectives) == {"all-reduce"}


def test_marks_for_a_target_move_nothing_and_the_step_runs_here_as_before() -> None:
    torch.manual_seed(0)
    up, down, step = two_layers()
    x = torch.ones(32, 16, device="pjrt")
    torch.manual_seed(0)
    plain = two_layers()[2](x).item()

    spread(up, down, Mesh.for_target(FAR, (2, 4), ("data", "model")))
    torch_pjrt.compile_for(FAR, step, x)

    assert sharding_of(up.weight) is None
    assert step(x).item() == plain


def test_marks_of_activations_hold_there() -> None:
    mesh = Mesh.for_target(FAR, (8,), ("data",))
    x = torch.empty(16, 8, device="meta")

    def spread_then_whole(x: torch.Tensor) -> torch.Tensor:
        y = mark_sharding(x * 2, mesh, ("data", None))
        return mark_sharding(y + 1, mesh, ())

    found = torch_pjrt.compile_for(FAR, spread_then_whole, x)

    assert found.collectives == {"all-gather": (1, 16 * 8 * FLOAT)}


def test_a_plan_for_a_target_says_what_the_marks_do() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    up, down, step = two_layers()
    mesh = Mesh.for_target(FAR, (2, 4), ("data", "model"))
    x = distribute_tensor(torch.empty(32, 16, device="meta"), mesh["data"], ("data",))
    layers = nn.ModuleDict({"up": up, "down": down})

    parallelize_module(layers, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})

    found = torch_pjrt.compile_for(FAR, step, x)
    counted = found.argument_bytes - FLOAT * (3 * PARAMETERS + BATCH)
    assert 0 <= counted <= N_PARAMETERS * FLOAT + 64
    assert set(found.collectives) == {"all-reduce"}
    assert sharding_of(up.weight) is None


def test_what_nobody_marks_is_whole_on_the_mesh_in_use() -> None:
    model = nn.Linear(16, 16).to("pjrt")

    with use_mesh(Mesh.for_target(FAR, (8,), ("data",))):
        found = torch_pjrt.compile_for(FAR, model, torch.empty(4, 16, device="meta"))
        here = torch.ones(2, device="pjrt") + 1

    assert found.n_chips == 8
    assert found.argument_bytes == FLOAT * (16 * 16 + 16 + 4 * 16)
    assert sharding_of(here) is None


def test_marks_for_another_target_do_not_count() -> None:
    model = nn.Linear(16, 16).to("pjrt")
    mark_sharding(model.weight, Mesh.for_target("far:other", (8,), ("data",)), ("data",))

    assert torch_pjrt.compile_for(FAR, model, torch.empty(4, 16, device="meta")).n_chips == 1


def test_a_function_with_marks_is_not_sharded_by_the_first_dim_too() -> None:
    mesh = Mesh.for_target(FAR, (8,), ("data",))
    x = distribute_tensor(torch.empty(16, 8, device="meta"), mesh, ("data",))

    with pytest.raises(SettingError, match="of a function without marks"):
        torch_pjrt.compile_for(FAR, torch.sin, x, sharded=True)


def test_a_mesh_has_no_more_chips_than_its_target() -> None:
    with pytest.raises(SettingError, match=r"needs 16 chips\.\n  saw: `far:8`"):
        Mesh.for_target(FAR, (4, 4), ("data", "model"))


def test_a_dim_that_the_targets_chips_do_not_divide_is_refused_at_the_call() -> None:
    with pytest.raises(ShardingError, match="Dim 0 has 12 elements"):
        mark_sharding(torch.empty(12), Mesh.for_target(FAR, (8,), ("data",)), ("data",))
