"""Processes save one checkpoint together, each part once, and any number of others loads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import several
import torch
from torch.distributed.checkpoint.state_dict_loader import load

from torch_pjrt_fsdp import CheckpointManager, load_checkpoint, save_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SCRIPT = str(Path(__file__).with_name("sharded_checkpoints.py"))
WHOLE = torch.arange(8 * 12.0).reshape(8, 12)
# Chips of the two processes: parts along both axes are four, along "model" two, on each process.
WRITTEN = {"parts": 4, "own": 2, "copies": 1, "number": 1}


def run(folder: Path, how: str) -> list[Any]:
    save_checkpoint({"alone": WHOLE}, folder / "alone")
    ended = several.run(SCRIPT, 2, str(folder), how, chips=2)
    assert [e.status for e in ended] == [CheckpointManager.PREEMPTED] * 2, [
        e.err[-3000:] for e in ended
    ]
    return [json.loads(e.out.strip().splitlines()[-1]) for e in ended]


def check_preemption(folder: Path) -> None:
    """Both have ended after the same step, and each has what is its own."""
    manager = CheckpointManager(folder / "run", per_process=["rank"])
    [step] = manager.steps()
    assert step > 3
    state: dict[str, Any] = {"step": 0, "rank": {"is": None}}
    assert manager.restore_latest(state) == state["step"] == step
    assert state["rank"] == {"is": 0}
    of_both: dict[str, Any] = {"rank-0": {"is": None}, "rank-1": {"is": None}}
    load_checkpoint(of_both, folder / "run" / f"step-{step}")
    assert of_both == {"rank-0": {"is": 0}, "rank-1": {"is": 1}}


def check_failures(of_both: list[Any]) -> None:
    """Each process is told what was wrong in the other one, and the checkpoint after is complete."""
    for rank, one in enumerate(of_both):
        found = one.pop("failing")
        assert found["steps"] == [1, 4]
        assert found["seconds"] < 120  # they would wait 600 s
        for i, faulty in enumerate((0, 1)):
            odd, read = found["told"][2 * i : 2 * i + 2]
            assert "could not be loaded again" in odd
            assert "division by zero" in read
            assert rank == faulty or f"Process {faulty} cannot save its state" in odd
            assert rank == faulty or f"Process {faulty} has failed" in read


def test_fsdp_of_pytorch_saves_loads_and_is_preempted(tmp_path: Path) -> None:
    found = run(tmp_path, "group")
    check_failures(found)
    for one in found:
        assert one["losses"] is True
        assert one["kinds"] == ["DTensor", "Tensor"]

    model: Any = torch.nn.Sequential(
        torch.nn.Linear(8, 15), torch.nn.Tanh(), torch.nn.Linear(15, 4)
    )
    into = {"model": model.state_dict()}
    load(into, checkpoint_id=tmp_path / "fsdp", no_dist=True)
    again = {name: x.clone() for name, x in into["model"].items()}
    load_checkpoint({"model": model}, tmp_path / "fsdp")
    assert all(torch.equal(x, again[name]) for name, x in model.state_dict().items())
    check_preemption(tmp_path)


@pytest.mark.slow
def test_a_mesh_over_processes_does_so_without_a_process_group(tmp_path: Path) -> None:
    found = run(tmp_path, "mesh")
    check_failures(found)
    for one in found:
        assert one == {
            "written": WRITTEN,
            "files": ["__0_0.distcp", "__1_0.distcp"],
            "loaded": [True] * 3,
            "from one process": True,
            "number": 3,
        }
    into = {name: torch.zeros(8, 12) for name in ("parts", "own", "copies")}
    load_checkpoint(into, tmp_path / "mesh")
    assert all(torch.equal(x, WHOLE) for x in into.values())
    check_preemption(tmp_path)
