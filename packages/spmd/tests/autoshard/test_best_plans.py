"""What is found is no worse than what one would do by hand, on one axis and on several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt_spmd import Plan, auto_shard
from torch_pjrt_spmd.autoshard.none_fits import NoPlan
from torch_pjrt_spmd.spec import ShardingError

MESH = {"data": 2, "model": 4}
Specs = Mapping[str, Sequence[Any]]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, layers: int = 3, width: int = 256) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def planned(model: nn.Module, x: torch.Tensor, specs: Specs | None = None, **options: Any) -> Plan:
    options = {"chip": "v5e", "seconds": 5, "optimizer": torch.optim.AdamW, **options}
    return auto_shard(model, x, options.pop("mesh", MESH), plan=specs, **options)


@cache
def best(batch: int) -> Plan:
    """What is found for a tower."""
    return planned(tower(), torch.empty(batch, 256, device="meta"))


def tower(layers: int = 3, width: int = 256) -> nn.Module:
    with torch.device("meta"):
        return Tower(layers, width)


def megatron(model: nn.Module) -> dict[str, Sequence[Any]]:
    found: dict[str, Sequence[Any]] = {"argument 0": ("data",)}
    for name, p in model.named_parameters():
        by_column = {1: ("model",), 2: ("model", None)}[p.dim()] if ".up." in name else None
        by_row = (None, "model") if name.endswith("down.weight") else (None,) * p.dim()
        found[name] = by_column or by_row
    return found


def fully_sharded(model: nn.Module) -> Specs:
    axes = ("data", "model")
    return {n: (axes, *[None] * (p.dim() - 1)) for n, p in model.named_parameters()} | {
        "argument 0": (axes,)
    }


def data_parallel(model: nn.Module) -> Specs:
    return {n: () for n, _ in model.named_parameters()} | {"argument 0": (("data", "model"),)}


@pytest.mark.parametrize("by_hand", [megatron, fully_sharded, data_parallel])
@pytest.mark.parametrize("batch", [16, 4096])
def test_plan_costs_no_more_than_one_by_hand(by_hand: Any, batch: int) -> None:
    model = tower()
    x = torch.empty(batch, 256, device="meta")

    assert best(batch).seconds <= 1.05 * planned(model, x, by_hand(model)).seconds


def test_small_batch_of_large_weights_is_not_data_parallel_alone() -> None:
    plan = planned(tower(2, 1024), torch.empty(16, 1024, device="meta"))

    spread = {
        axis
        for e in plan.spec("blocks.0.up.weight")
        if e
        for axis in ([e] if isinstance(e, str) else e)
    }
    assert "model" in spread
    assert (
        plan.seconds
        < 0.8
        * planned(
            tower(2, 1024), torch.empty(16, 1024, device="meta"), data_parallel(tower(2, 1024))
        ).seconds
    )


def test_large_batch_of_small_weights_is_data_parallel_along_both_axes() -> None:
    plan = planned(tower(), torch.empty(65536, 256, device="meta"))

    assert plan.spec("blocks.1") == (("data", "model"), None)


def test_plan_for_an_axis_over_slices_is_made_for_it() -> None:
    x = torch.empty(64, 1024, device="meta")
    near, far = (planned(tower(2, 1024), x, across=a) for a in ((), ("data",)))
    as_near = {name: p.spec for p in near.placements for name in p.names}
    near_there = planned(tower(2, 1024), x, as_near, across=("data",))

    assert far.seconds <= 1.001 * near_there.seconds


def test_layers_are_decided_once() -> None:
    x = torch.empty(64, 256, device="meta")
    few, many = (planned(tower(n), x) for n in (3, 6))

    assert {p.name for p in few.placements} == {p.name for p in many.placements}
    assert len(few.placements) == len(many.placements)
    up = next(p for p in many.placements if p.name.endswith("up.weight"))
    assert up.names == tuple(f"blocks.{i}.up.weight" for i in range(6))
    assert many.flops == 2 * few.flops


def test_memory_that_does_not_do_names_what_would() -> None:
    x = torch.empty(64, 256, device="meta")
    roomy = planned(tower(4), x)
    least = None
    with pytest.raises(NoPlan) as raised:
        planned(tower(4), x, memory_per_device=1 << 20)
    least = raised.value.needed

    assert (1 << 20) < least < roomy.memory.peak
    assert any("chips along `data` instead of 2" in change for change in raised.value.changes)
    tight = planned(tower(4), x, memory_per_device=least)
    assert tight.memory.peak <= least
    assert tight.seconds >= roomy.seconds


def test_layers_are_computed_again_where_the_memory_is_small() -> None:
    x = torch.empty(16384, 256, device="meta")
    roomy = planned(tower(8), x)
    tight = planned(tower(8), x, memory_per_device=roomy.memory.peak // 2)

    assert not roomy.rematerialized
    assert tight.rematerialized == tuple(f"blocks.{i}" for i in range(8))
    assert tight.flops > roomy.flops
    assert tight.memory.peak <= roomy.memory.peak // 2


def test_plan_is_saved_edited_and_loaded(tmp_path: Any) -> None:
    x = torch.empty(64, 256, device="meta")
    planned(tower(), x).save(tmp_path / "plan.json")
    said = json.loads((tmp_path / "plan.json").read_text())
    for i in range(3):
        said["placements"][f"blocks.{i}.up.weight"] = [None, "data"]
    (tmp_path / "plan.json").write_text(json.dumps(said))

    again = auto_shard(
        tower(),
        x,
        MESH,
        optimizer=torch.optim.AdamW,
        chip="v5e",
        plan=tmp_path / "plan.json",
        seconds=1,
    )

    assert again.spec("blocks.2.up.weight") == (None, "data")
    assert next(p for p in again.placements if p.name == "blocks.0.up.weight").fixed


def test_file_of_another_mesh_is_refused(tmp_path: Any) -> None:
    x = torch.empty(64, 256, device="meta")
    planned(tower(), x).save(tmp_path / "plan.json")

    with pytest.raises(ShardingError, match="other axes"):
        auto_shard(tower(), x, {"x": 8}, chip="v5e", plan=tmp_path / "plan.json")


def test_spec_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ShardingError, match=r"blocks\.0\.norm\.weight"):
        planned(
            tower(3, 300),
            torch.empty(64, 300, device="meta"),
            {"blocks.0.norm.weight": (("data", "model"),)},
        )


def test_plan_is_shown_with_what_else_would_cost(tmp_path: Any) -> None:
    plan = planned(tower(), torch.empty(64, 256, device="meta"))

    text = str(plan)
    plan.draw(tmp_path / "plan.svg")

    assert "blocks.0.up.weight" in text
    assert "like it" in text
    assert "costs more" in text
    assert all(p.alternative_s is None or p.alternative_s >= -1e-12 for p in plan.placements)
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")
