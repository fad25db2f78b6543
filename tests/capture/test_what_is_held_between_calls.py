"""What somebody reads or holds between two calls of a captured step changes neither what it does nor whether
it is replayed.

Who holds a tensor's array decides which memory a program takes, and so which program is launched. Reading on
the CPU is holding: what is read lies in the array's own memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import CaptureError
from torch_pjrt.replays import step as steps

N_CALLS = 10


class Made:
    """A step on tensors of a device, which are `held` between its calls."""

    def __init__(self, device: str) -> None:
        self.x = torch.full((3,), 2.0).to(device)
        self.weights = [torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]).to(device)) for _ in "ab"]
        self.held: list[torch.Tensor] = list(self.weights)
        self.optimizer = torch.optim.SGD(self.weights, lr=0.125)
        self.state = torch.ones(3).to(device)

    def sgd(self) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = torch.stack([(w * x).square().mean() for w in self.weights]).sum()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        return step

    def momentum(self) -> Callable[..., torch.Tensor]:
        self.optimizer = torch.optim.SGD(self.weights, lr=0.125, momentum=0.5)
        return self.sgd()

    def gradients_that_grow(self) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:
            loss = torch.stack([(w * x).square().mean() for w in self.weights]).sum()
            loss.backward()
            return loss.detach()

        return step

    def argument_in_place(self) -> Callable[..., torch.Tensor]:
        self.held = [self.x]

        def step(x: torch.Tensor) -> torch.Tensor:
            x.mul_(0.5).add_(1.0)
            return x + self.state

        return step

    def two_launches(self) -> Callable[..., torch.Tensor]:
        self.held = [self.state]

        def step(x: torch.Tensor) -> torch.Tensor:
            self.state.mul_(0.5).add_(x)
            if x.device.type == "pjrt":
                torch_pjrt.sync()
            return self.state.add_(1.0) * x

        return step

    def one_value_in_two(self) -> Callable[..., torch.Tensor]:
        other = torch.zeros_like(self.state)
        self.held = [self.state, other]

        def step(x: torch.Tensor) -> torch.Tensor:
            new = self.state * 0.5 + x
            self.state.copy_(new)
            other.copy_(new)
            return other + x

        return step


STEPS = [
    Made.sgd,
    Made.momentum,
    Made.gradients_that_grow,
    Made.argument_in_place,
    Made.two_launches,
    Made.one_value_in_two,
]
HOLDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "read": lambda x: x.detach().cpu() * 0,
    "as an array": lambda x: torch_pjrt.to_jax(x.detach()),
}
WHEN: dict[str, Callable[[int], bool]] = {
    "always": lambda i: True,
    "by turns": lambda i: i % 2 == 0,
    "by turns, from the second on": lambda i: i % 2 == 1,
    "at first": lambda i: i < 4,
    "from the first replay on": lambda i: i >= 3,
    **{f"before call {n}": lambda i, n=n: i == n for n in (2, 3, 4, 7)},
}


@pytest.fixture(autouse=True)
def early_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks after 1 replay and after 4."""
    monkeypatch.setattr(steps, "_FIRST_CHECK", 1)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_values_are_those_of_the_cpu_and_calls_are_replayed(
    make: Callable[[Made], Callable[..., torch.Tensor]], hold: str
) -> None:
    on_cpu = Made("cpu")
    step = make(on_cpu)
    expected = [step(on_cpu.x).clone() for _ in range(N_CALLS)]

    faults = []
    for when, is_held in WHEN.items():
        made = Made("pjrt")
        captured = torch_pjrt.capture(make(made))
        results: list[torch.Tensor] = []
        held: list[Any] = []
        try:
            for i in range(N_CALLS):
                held = [HOLDS[hold](x) for x in made.held if is_held(i)]
                results.append(captured(made.x).cpu())
        except CaptureError as error:
            faults.append(f"{when}: at call {len(results)} {error}")
            continue
        if not all(torch.allclose(x, y) for x, y in zip(results, expected, strict=True)):
            faults.append(f"{when}: {results}, expected {expected}")
        if captured.replays < N_CALLS - 6:
            faults.append(f"{when}: {captured.replays} replays; {captured.restarts}")
        del held
    assert faults == []


@pytest.mark.parametrize("hold", HOLDS)
def test_a_check_launches_what_was_recorded_though_parameters_are_held(
    hold: str, compiled: Callable[[], int]
) -> None:
    made = Made("pjrt")
    captured = torch_pjrt.capture(made.momentum())
    for _ in range(4):
        captured(made.x)
    before, donated = compiled(), torch_pjrt.report().as_dict()["donated"]

    held = [HOLDS[hold](x) for x in made.held]
    captured(made.x)  # the check

    assert captured.replays == 1
    assert compiled() == before
    assert torch_pjrt.report().as_dict()["donated"] == donated + 4  # parameters and moments
    del held
