"""An optimizer's first step is the program of all its steps: its state was made before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from quickly import compiled_quickly  # noqa: F401  all tests here
from torch_pjrt.device import optimizer_state
from torch_pjrt.extend import add_optimizer_hook

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "adadelta": ("Adadelta", {}),
    "adam": ("Adam", {}),
    "adam, amsgrad": ("Adam", {"amsgrad": True}),
    "adam, capturable": ("Adam", {"capturable": True}),
    "adam, fused": ("Adam", {"fused": True}),
    "adam, one by one": ("Adam", {"foreach": False, "capturable": True}),
    "adamax": ("Adamax", {}),
    "adamw": ("AdamW", {}),
    "adamw, fused, amsgrad": ("AdamW", {"fused": True, "amsgrad": True}),
    "muon": ("Muon", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop, centered, momentum": ("RMSprop", {"centered": True, "momentum": 0.9}),
    "rprop": ("Rprop", {}),
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd, fused, momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "sgd, maximize, decay": (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "maximize": True, "weight_decay": 0.1},
    ),
    "sgd, momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "sgd, nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
}
# Their first gradient is their state, or they read values: as before.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "asgd": ("ASGD", {}),
    "sgd, dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
}


class Training:
    """A matrix and a vector that are trained; no element of a gradient but some zeros, of both signs."""

    def __init__(self, cls: str, options: dict[str, Any], device: str = "pjrt") -> None:
        generator = torch.Generator().manual_seed(0)
        self.leaves = [
            torch.randn(shape, generator=generator).to(device).requires_grad_()
            for shape in ((3, 4), (5,))
        ]
        self.scale = torch.tensor([0.0, -0.0, 1.0, -2.0]).to(device)
        of = [x for x in self.leaves if x.ndim == 2 or cls != "Muon"]  # which takes matrices alone
        self.optimizer = getattr(torch.optim, cls)(of, **options)
        torch_pjrt.sync()

    def step(self, *, of: int = 2) -> None:
        for x in self.leaves:
            x.grad = None
        x, y = self.leaves
        loss = (x * self.scale).sum()
        (loss + (y * y).sum() if of == 2 else loss).backward()
        self.optimizer.step()

    def all(self) -> list[torch.Tensor]:
        """Parameters and state."""
        states = [self.optimizer.state[p] for p in self.leaves if p in self.optimizer.state]
        held = [
            x for state in states for _, x in sorted(state.items()) if isinstance(x, torch.Tensor)
        ]
        return [x.detach().cpu() for x in (*self.leaves, *held)]


def trained(
    cls: str, options: dict[str, Any], steps: int, device: str = "pjrt"
) -> list[torch.Tensor]:
    training = Training(cls, options, device)
    for _ in range(steps):
        training.step()
    return training.all()


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", [*ROWS, *OTHERS])
@pytest.mark.parametrize("steps", [1, 3])
def test_state_and_parameters_are_those_of_pytorchs_own_first_step(
    name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (ROWS | OTHERS)[name]
    found = trained(*row, steps)
    monkeypatch.setattr(optimizer_state, "_maker", lambda optimizer: None)
    expected = trained(*row, steps)

    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("sgd")])
def test_momentum_begins_as_the_first_gradient_to_the_sign_of_its_zeros(name: str) -> None:
    found, expected = trained(*ROWS[name], 1), trained(*ROWS[name], 1, "cpu")

    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
        assert torch.equal(x.signbit(), y.signbit())


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", ROWS)
def test_one_program_serves_all_steps_and_none_makes_zeros(name: str, compiled: Count) -> None:
    training = Training(*ROWS[name])
    before = compiled()
    after = []

    for _ in range(4):
        training.step()
        after.append(compiled() - before)

    assert after == [1] * 4


def test_parameters_that_come_later_get_their_state_then() -> None:
    training = Training("Adam", {"lr": 0.1})
    training.step(of=1)
    kept = {p: dict(s) for p, s in training.optimizer.state.items()}
    training.step()

    assert [len(training.optimizer.state[p]) for p in training.leaves] == [3, 3]
    assert list(kept) == training.leaves[:1]
    assert all(training.optimizer.state[p][k] is x for p, s in kept.items() for k, x in s.items())


@pytest.mark.parametrize("by", ["position", "keyword"])
@pytest.mark.parametrize("name", ["adamw", "sgd, momentum", "rprop", "sgd, dampening"])
def test_state_is_made_behind_a_closure_that_makes_gradients(
    name: str, by: str, compiled: Count
) -> None:
    row = (ROWS | OTHERS)[name]

    def train(device: str) -> tuple[list[torch.Tensor], list[int]]:
        training = Training(*row, device)
        begun, after = compiled(), []

        def closure() -> torch.Tensor:
            training.optimizer.zero_grad()
            x, y = training.leaves
            loss = (x * training.scale).sum() + (y * y).sum()
            loss.backward()
            return loss

        for _ in range(3):
            step: Any = training.optimizer.step
            losses.append(step(closure) if by == "position" else step(closure=closure))
            after.append(compiled() - begun)
        return training.all(), after

    losses: list[torch.Tensor] = []
    found, after = train("pjrt")
    expected, _ = train("cpu")

    assert after == ([1, 1, 1] if name in ROWS else [1, 2, 2])
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    for x, y in zip(losses[:3], losses[3:], strict=True):
        torch.testing.assert_close(x.detach().cpu(), y.detach())


@pytest.mark.parametrize("name", ["muon", "rprop"])
def test_gradients_are_the_same_tensors_behind_a_step(name: str) -> None:
    training = Training(*ROWS[name])
    x, y = training.leaves
    x.grad, y.grad = torch.full_like(x, 2.0), torch.full_like(y, 3.0)
    before = [x.grad, y.grad]
    training.optimizer.step()

    assert x.grad is before[0]
    assert y.grad is before[1]
    assert before[0].unique().tolist() == [2.0]
    assert before[1].unique().tolist() == [3.0]


def test_step_that_finds_no_room_for_state_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training("Adam", {"lr": 0.1})
    before = [p.tolist() for p in training.leaves]

    def no_room(tape: object, cause: str) -> None:
        raise torch.OutOfMemoryError(cause)

    with monkeypatch.context() as patch:
        patch.setattr(optimizer_state, "run_pending", no_room)
        with pytest.raises(torch.OutOfMemoryError):
            training.step()
    assert not training.optimizer.state
    assert [p.tolist() for p in training.leaves] == before
    training.step()
    assert len(training.optimizer.state) == 2


def test_what_is_pending_stays_pending(compiled: Count) -> None:
    training = Training("Adam", {"lr": 0.1})
    other = torch.ones(3, device="pjrt") * 2
    before = compiled()
    training.step()

    assert compiled() - before == 1
    assert other.tolist() == [2.0] * 3


def test_who_asks_is_told_of_an_optimizer_before_its_state_is_made() -> None:
    training = Training("Adam", {"lr": 0.1})
    told: list[int] = []
    with add_optimizer_hook(lambda optimizer: told.append(len(optimizer.state))):
        training.step()
        training.step()
    training.step()

    assert told == [0, 2]


def test_model_that_is_made_on_the_device_is_trained_by_two_programs(compiled: Count) -> None:
    with torch.device("pjrt"):
        layer = torch.nn.Linear(3, 3)
        optimizer = torch.optim.Adam(layer.parameters())
        before = compiled()
        for _ in range(3):
            optimizer.zero_grad()
            layer(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    assert compiled() - before == 2


@pytest.mark.parametrize("cls", ["AdamW", "SGD"])
@pytest.mark.parametrize("kind", ["channels last", "transposed"])
def test_memory_formats_of_parameters_need_one_program(
    cls: str, kind: str, compiled: Count
) -> None:
    x = torch.randn(2, 3, 4, 5)
    x = x.to(memory_format=torch.channels_last) if kind == "channels last" else x.transpose(0, 3)
    parameter = torch.nn.Parameter(x.to("pjrt"))
    optimizer = getattr(torch.optim, cls)([parameter], lr=0.1)
    torch_pjrt.sync()
    before = compiled()
    for _ in range(3):
        optimizer.zero_grad()
        (parameter * parameter).sum().backward()
        optimizer.step()

    assert parameter.stride() == x.stride()
    assert compiled() - before == 1
