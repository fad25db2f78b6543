"""Training that goes on from a checkpoint runs the program that it ran before, at the same pace."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_pjrt
from fixture_types import Count
from quickly import compiled_quickly  # noqa: F401  all tests here
from torch_pjrt.observe.counters import counters

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "adadelta": ("Adadelta", {}),
    "adagrad": ("Adagrad", {}),
    "adam": ("Adam", {}),
    "adam, amsgrad": ("Adam", {"amsgrad": True}),
    "adam, one by one": ("Adam", {"foreach": False}),
    "adam, fused": ("Adam", {"fused": True}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "rmsprop": ("RMSprop", {"momentum": 0.9}),
    "rprop": ("Rprop", {}),
    "sgd": ("SGD", {"lr": 0.01, "momentum": 0.9}),
}


class Training:
    """A layer and its optimizer."""

    def __init__(self, name: str, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.layer = torch.nn.Linear(4, 3).to(device)
        cls, how = ROWS[name]
        self.optimizer = getattr(torch.optim, cls)(self.layer.parameters(), **how)
        if device == "pjrt":
            torch_pjrt.sync()

    def step(self) -> float:
        self.optimizer.zero_grad()
        x = torch.arange(8.0).reshape(2, 4).to(self.device)
        loss = self.layer(x).sin().sum()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def saved(self) -> io.BytesIO:
        file = io.BytesIO()
        torch.save([self.layer.state_dict(), self.optimizer.state_dict()], file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO, **how: Any) -> None:
        layer, optimizer = torch.load(file, **how)
        self.layer.load_state_dict(layer)
        self.optimizer.load_state_dict(optimizer)


def losses(name: str, device: str, **how: Any) -> list[float]:
    first, second = Training(name, device), Training(name, device)
    before = [first.step() for _ in range(3)]
    second.load(first.saved(), **how)
    return before + [second.step() for _ in range(3)]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("to", ["pjrt", "cpu", None])
def test_losses_are_those_of_the_cpu(name: str, to: str | None) -> None:
    found = losses(name, "pjrt", map_location=to)

    assert found == pytest.approx(losses(name, "cpu"), rel=1e-4)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("to", ["pjrt", "cpu", None])
def test_nothing_is_compiled_and_nothing_but_the_loss_is_read(
    name: str, to: str | None, compiled: Count
) -> None:
    first, second = Training(name, "pjrt"), Training(name, "pjrt")
    for _ in range(3):
        first.step()
    second.load(first.saved(), map_location=to)
    begun = compiled()
    second.step()
    read = counters.downloads
    run = counters.programs_run
    second.step()

    assert compiled() == begun
    assert counters.downloads - read == 1
    assert counters.programs_run - run == 1


def counts(training: Training) -> set[str]:
    return {state["step"].device.type for state in training.optimizer.state.values()}


def test_counts_go_back_to_the_host_in_the_first_step() -> None:
    first, second = Training("adam", "pjrt"), Training("adam", "pjrt")
    first.step()
    second.load(first.saved(), map_location="pjrt")
    assert counts(second) == {"pjrt"}
    second.step()

    assert counts(second) == {"cpu"}
    assert {state["step"].item() for state in second.optimizer.state.values()} == {2.0}


def test_counts_that_a_captured_step_has_moved_stay() -> None:
    training = Training("adam", "pjrt")
    x = torch.ones(2, 4, device="pjrt")

    @torch_pjrt.capture
    def step(x: Tensor) -> Tensor:
        training.optimizer.zero_grad()
        loss = training.layer(x).sum()
        loss.backward()
        training.optimizer.step()
        return loss.detach()

    for _ in range(4):
        step(x)
    assert counts(training) == {"pjrt"}
    training.step()

    assert counts(training) == {"pjrt"}


def test_counts_stay_where_the_optimizer_wants_them_on_the_device() -> None:
    options: list[dict[str, Any]] = [{"capturable": True}, {"fused": True}]
    for how in options:
        layer = torch.nn.Linear(4, 3).to("pjrt")
        optimizer = torch.optim.Adam(layer.parameters(), **how)
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.ones(2, 4, device="pjrt")).sum().backward()
            optimizer.step()

        assert {s["step"].device.type for s in optimizer.state.values()} == {"pjrt"}
