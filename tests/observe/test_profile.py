"""Profilers see our phases, the steps and the modules: PyTorch's own, and what `profile()` writes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from fixture_types import Count
from torch_pjrt.observe import modules, phases
from torch_pjrt.observe.counters import counters


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Training:
    """A small network that is trained."""

    def __init__(self) -> None:
        self.model = nn.Sequential(Block(), Block()).to("pjrt")
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def step(self) -> float:
        x = torch.rand(3, 4).to("pjrt")
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def events_in(folder: Path) -> list[dict[str, Any]]:
    """The complete events of the one trace in the folder, as Perfetto reads them."""
    [file] = folder.glob("**/perfetto_trace.json.gz")
    with gzip.open(file) as opened:
        return [e for e in json.load(opened)["traceEvents"] if e.get("ph") == "X"]


def holds(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_pytorch_profiler_shows_our_phases_within_a_sync(compiled: Count) -> None:
    training = Training()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        training.step()

    events = {e.name: e for e in profiler.events() or ()}
    names = ("sync", "lower", "compile", "launch", "upload", "download")
    assert {f"pjrt::{name}" for name in names} <= set(events)
    sync, launch = events["pjrt::sync"].time_range, events["pjrt::launch"].time_range
    assert sync.start <= launch.start
    assert launch.end <= sync.end
    assert {"aten::addmm", "aten::relu"} <= set(events)


def test_no_range_is_made_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "phase", None)

    assert not phases.is_watched()
    with counters.timed("launch_s"):
        pass


def test_trace_has_steps_phases_and_modules(compiled: Count, tmp_path: Path) -> None:
    training = Training()
    training.step()

    with torch_pjrt.profile(tmp_path):
        for _ in range(3):
            training.step()

    events = events_in(tmp_path)
    steps = [e for e in events if e["name"] == "step"]
    assert [e["args"]["step_num"] for e in steps] == ["0", "1", "2", "3"]
    modules_seen = {e["name"] for e in events if e["name"].startswith("Sequential")}
    assert modules_seen == {"Sequential"} | {
        f"Sequential/{i}{part}" for i in (0, 1) for part in ("", "/up", "/down")
    }
    for step in steps[:3]:
        inside = [e["name"] for e in events if holds(step, e)]
        assert {"Sequential/1/down", "pjrt::sync", "pjrt::launch"} <= set(inside)
    assert any("hlo_op" in e.get("args", {}) for e in events), "what XLA ran"


def test_what_xla_ran_has_the_names_of_modules(compiled: Count, tmp_path: Path) -> None:
    training = Training()

    with torch_pjrt.profile(tmp_path):
        training.step()

    [file] = tmp_path.glob("**/*.xplane.pb")
    assert b"Sequential/1/down/aten.addmm.default(test_profile.py:" in file.read_bytes()
    assert b"Sequential/0/up/backward/aten.mm.default(test_profile.py:" in file.read_bytes()


def test_steps_ended_by_hand_are_not_ended_by_optimizers(tmp_path: Path) -> None:
    training = Training()

    with torch_pjrt.profile(tmp_path) as steps:
        for _ in range(2):
            steps.step()
            training.step()
            training.step()

    numbers = [e["args"]["step_num"] for e in events_in(tmp_path) if e["name"] == "step"]
    assert numbers == ["0", "1", "2"]


def test_after_the_block_nothing_is_traced_also_if_it_failed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), torch_pjrt.profile(tmp_path):
        raise ValueError("no")

    assert modules.range_of is None
    assert phases.range_of is None
    assert not phases.is_watched()
    assert Training().step() > 0


def test_python_functions_are_in_the_trace_on_request(tmp_path: Path) -> None:
    training = Training()
    training.step()

    with torch_pjrt.profile(tmp_path, python=True):
        training.step()

    assert any("test_profile.py" in e["name"] for e in events_in(tmp_path))
