"""A state on a mesh is saved by its parts, each once, and goes on on another mesh, or on none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt_fsdp import CheckpointManager, load_checkpoint, save_checkpoint
from torch_pjrt_spmd import Mesh, distribute_tensor, mark_sharding, sharding_of

MESHES: dict[str, tuple[tuple[int, ...], Any]] = {
    "rows": ((8, 1), ("data", None)),
    "columns": ((1, 8), (None, "model")),
    "both": ((2, 4), ("model", "data")),
    "copies": ((2, 4), ()),
}


class Run:
    """A model on a mesh, or on one chip, with an optimizer that has momenta."""

    def __init__(self, where: str | None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).to("pjrt")
        if where is not None:
            shape, spec = MESHES[where]
            mesh = Mesh(shape, ("data", "model"))
            for x in self.model.parameters():
                mark_sharding(x, mesh, spec if x.dim() == 2 else ())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}

    def step(self) -> float:
        loss = self.model(torch.ones(4, 16, device="pjrt")).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    @property
    def momentum(self) -> torch.Tensor:
        weight: torch.Tensor = self.model[0].weight  # type: ignore[assignment]
        return self.optimizer.state[weight]["exp_avg"]


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ("rows", "columns"),
        ("both", None),
        pytest.param("both", "rows", marks=pytest.mark.slow),
        pytest.param(None, "both", marks=pytest.mark.slow),
        pytest.param("copies", "rows", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_on_another_mesh(
    saved: str | None, loaded: str | None, tmp_path: Path
) -> None:
    run = Run(saved)
    with CheckpointManager(tmp_path) as manager:
        for step in range(2):
            run.step()
            manager.save(step, run.state)
    wanted = [run.step() for _ in range(2)]

    again = Run(loaded)
    assert CheckpointManager(tmp_path).restore_latest(again.state) == 1

    assert sharding_of(again.momentum) == sharding_of(again.model[0].weight)  # type: ignore[arg-type]
    assert [again.step() for _ in range(2)] == pytest.approx(wanted, rel=1e-5)
    assert sharding_of(again.momentum) == sharding_of(again.model[0].weight)  # type: ignore[arg-type]


def test_on_the_same_mesh_the_losses_are_the_same_to_the_bit(tmp_path: Path) -> None:
    run = Run("both")
    run.step()
    with CheckpointManager(tmp_path) as manager:
        manager.save(0, run.state)
    wanted = [run.step() for _ in range(3)]

    again = Run("both")
    CheckpointManager(tmp_path).restore_latest(again.state)

    assert [again.step() for _ in range(3)] == wanted


def test_each_part_is_written_once_and_goes_to_its_chip_alone(
    tmp_path: Path, uploads: list[int]
) -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    x = torch.randn(64, 1024)
    state = {
        "parts": distribute_tensor(x, mesh, ("model", "data")),
        "some copies": distribute_tensor(x, mesh, ("model",)),
        "copies": distribute_tensor(x, mesh, ()),
    }
    save_checkpoint(state, tmp_path / "a")
    index = json.loads((tmp_path / "a" / "checkpoint.json").read_text())["index"]
    names = [entry["name"] for entry in index["entries"]]
    assert {name: names.count(name) for name in state} == {
        "parts": 8,
        "some copies": 4,
        "copies": 1,
    }
    assert sum(entry["bytes"] for entry in index["entries"]) == 3 * x.nbytes

    y = distribute_tensor(torch.zeros(64, 1024), mesh, ("data", "model"))
    for name in state:
        uploads.clear()
        load_checkpoint({name: y}, tmp_path / "a")
        assert torch.equal(y.cpu(), x)
        assert sorted(uploads) == [x.nbytes // 8] * 8


def test_layers_that_are_stacked_are_saved_and_loaded_one_by_one(tmp_path: Path) -> None:
    """Parameters of rolled layers are elements of a stack on the device after the first step."""

    class Deep(Run):
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.model = nn.Sequential(
                *(layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh()))
            ).to("pjrt")
            mesh = Mesh((2, 4), ("data", "model"))
            for x in self.model.parameters():
                mark_sharding(x, mesh, ("data", "model") if x.dim() == 2 else ())
            self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
            self.state = {"model": self.model, "optimizer": self.optimizer}

    run = Deep()
    for _ in range(3):
        run.step()
    save_checkpoint(run.state, tmp_path / "a")
    held = {name: x.cpu() for name, x in run.model.state_dict().items()}
    wanted = run.step()

    again = Deep()
    load_checkpoint(again.state, tmp_path / "a")

    for name, x in again.model.state_dict().items():
        assert torch.equal(x.cpu(), held[name]), name
    assert again.step() == pytest.approx(wanted, rel=1e-5)
