"""Every optimizer of PyTorch takes its steps in a captured step too, or words say why not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.errors import CaptureError

Options = dict[str, Any]
N_STEPS = 9

_COUNTS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "RMSprop", "Rprop")
CAPTURED: list[tuple[str, Options]] = [
    *[(name, {}) for name in (*_COUNTS, "SGD", "Muon")],
    *[(name, {"capturable": True}) for name in _COUNTS],
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("Adam", {"fused": True}),
    ("AdamW", {"foreach": False, "amsgrad": True}),
    ("NAdam", {"momentum_decay": 0.01, "foreach": False}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adagrad", {"fused": True}),
]
# Its rectification cancels digits; with `capturable=True` it is computed in float32.
TOLERANCES = {"RAdam": 5e-5}
# What they are told: use another form, or leave the optimizer out.
REFUSED: list[tuple[str, Options, str]] = [
    ("Adagrad", {}, "fused=True"),
    ("Adagrad", {"lr_decay": 0.1}, "fused=True"),
    ("Adafactor", {}, "leave `Adafactor.step..` out"),
    ("LBFGS", {}, "leave `LBFGS.step..` out"),
]


def batches() -> list[torch.Tensor]:
    return [torch.full((2, 4), 1.0 - i / 16).to("pjrt") for i in range(N_STEPS)]


class Trained:
    """A model, its optimizer and a step."""

    def __init__(self, name: str, options: Options) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 3, bias=False))
        self.model.to("pjrt")
        self.optimizer = getattr(torch.optim, name)(self.model.parameters(), **options)
        self.is_search = name == "LBFGS"

    def differentiated(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().sum()
        loss.backward()
        return loss

    def step(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_search:
            return self.optimizer.step(lambda: self.differentiated(x)).detach()
        loss = self.differentiated(x)
        self.optimizer.step()
        return loss.detach()

    def run(self, step: Callable[[torch.Tensor], torch.Tensor], times: int) -> list[float]:
        return [step(x).item() for x in batches()[:times]]

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().cpu() for p in self.model.parameters()]


def named(row: Any) -> str:
    return f"{row[0]} {row[1]}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CAPTURED, ids=map(named, CAPTURED))
def test_optimizer_takes_its_steps_when_captured(name: str, options: Options) -> None:
    plain, captured = Trained(name, options), Trained(name, options)
    step = torch_pjrt.capture(captured.step)

    losses = captured.run(step, N_STEPS)

    rtol = TOLERANCES.get(name, 2e-6)
    torch.testing.assert_close(losses, plain.run(plain.step, N_STEPS), rtol=rtol, atol=1e-6)
    torch.testing.assert_close(captured.weights(), plain.weights(), rtol=rtol, atol=1e-6)
    assert step.replays >= 3
    groups = captured.optimizer.param_groups
    assert all(
        g["capturable"] is options.get("capturable", False) for g in groups if "capturable" in g
    )
    # Outside, and with a state that was saved and loaded, it goes on.
    for trained in (plain, captured):
        state = copy.deepcopy(trained.optimizer.state_dict())
        trained.step(batches()[0])
        trained.optimizer.load_state_dict(state)
    assert captured.run(captured.step, 2) == pytest.approx(plain.run(plain.step, 2), rel=10 * rtol)
    assert captured.run(step, 6) == pytest.approx(plain.run(plain.step, 6), rel=10 * rtol)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "words"), REFUSED, ids=map(named, REFUSED))
def test_refusal_of_an_optimizer_says_what_to_do(name: str, options: Options, words: str) -> None:
    trained = Trained(name, options)

    with pytest.raises(CaptureError, match=words):
        trained.run(torch_pjrt.capture(trained.step), N_STEPS)


class Counts(torch.optim.Optimizer):
    """As many packages write theirs: Python numbers in the state, or in the group."""

    def __init__(self, params: Any, where: str) -> None:
        super().__init__(params, {"lr": 0.1, **({"step": 0} if where == "group" else {})})
        self.where = where

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                counts = group if self.where == "group" else self.state[p]
                if self.where == "tensor":
                    count = counts.setdefault("step", torch.zeros((), device=p.device)).add_(1)
                else:
                    count = counts["step"] = counts.get("step", 0) + 1
                p.sub_(p.grad * (group["lr"] / count))


@pytest.mark.parametrize("where", ["state", "group"])
def test_optimizer_that_counts_by_python_numbers_is_told_of_tensors(where: str) -> None:
    trained = Trained("SGD", {})
    trained.optimizer = Counts(trained.model.parameters(), where)

    with pytest.raises(CaptureError, match="keep them in tensors on pjrt"):
        trained.run(torch_pjrt.capture(trained.step), N_STEPS)


def test_optimizer_that_counts_by_a_tensor_of_the_device_is_captured() -> None:
    plain, captured = Trained("SGD", {}), Trained("SGD", {})
    for trained in (plain, captured):
        trained.optimizer = Counts(trained.model.parameters(), "tensor")
    step = torch_pjrt.capture(captured.step)

    assert captured.run(step, N_STEPS) == plain.run(plain.step, N_STEPS)
    assert step.replays >= 3


def test_optimizer_outside_of_the_captured_step_may_count_on_the_host() -> None:
    plain, captured = Trained("Adafactor", {}), Trained("Adafactor", {})
    losses: list[list[float]] = [[], []]
    for trained, closure, into in (
        (plain, plain.model, losses[0]),
        (captured, captured.model, losses[1]),
    ):

        def gradients(x: torch.Tensor, model: nn.Module = closure) -> torch.Tensor:
            loss = model(x).square().sum()
            loss.backward()
            return loss.detach()

        step = torch_pjrt.capture(gradients) if trained is captured else gradients
        for x in batches():
            trained.optimizer.zero_grad()
            into.append(step(x).item())
            trained.optimizer.step()
        if trained is captured:
            assert step.replays >= 3  # type: ignore[union-attr]
    assert losses[0] == losses[1]
