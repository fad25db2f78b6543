"""A captured step whose optimizer's numbers change from call to call: replays compute with the new ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

import torch_pjrt
from torch_pjrt.errors import CaptureError

N_STEPS = 24
N_CHANGES = 12
Change = Callable[[torch.optim.Optimizer, int], None]


class Trained:
    """A model, its optimizer and a step."""

    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).to("pjrt")
        self.optimizer = optimizer(self.model.parameters())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, step: Callable[[torch.Tensor], torch.Tensor], change: Change) -> list[float]:
        losses = []
        for i in range(N_STEPS):
            losses.append(step(torch.full((2, 4), 1.0 - i / 32).to("pjrt")).item())
            change(self.optimizer, i)
        return losses

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().cpu() for p in self.model.parameters()]


def compared(
    optimizer: Callable[[Any], torch.optim.Optimizer],
    change: Callable[[torch.optim.Optimizer], Change],
    rtol: float = 0.0,
) -> Any:
    """A captured run does what the same run does that is not captured; the captured step."""
    plain, captured = Trained(optimizer), Trained(optimizer)
    step = torch_pjrt.capture(captured.step)
    losses = captured.run(step, change(captured.optimizer))

    expected = plain.run(plain.step, change(plain.optimizer))
    torch.testing.assert_close(losses, expected, rtol=rtol, atol=0)
    torch.testing.assert_close(captured.weights(), plain.weights(), rtol=rtol, atol=rtol)
    return step


def scheduled(
    make: Callable[[torch.optim.Optimizer], Any],
) -> Callable[[torch.optim.Optimizer], Change]:
    """A change that is a step of a scheduler."""

    def change_of(optimizer: torch.optim.Optimizer) -> Change:
        schedule = make(optimizer)
        return lambda *_: schedule.step()

    return change_of


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "each step": lambda o: schedulers.LambdaLR(o, lambda i: 1 / (1 + i)),
    "momentum too": lambda o: schedulers.OneCycleLR(o, 0.05, total_steps=60),
    "each sixth step": lambda o: schedulers.StepLR(o, 6, 0.5),
    "warmup, then constant": lambda o: schedulers.LinearLR(o, 0.1, total_iters=8),
    "there and back": lambda o: schedulers.CyclicLR(o, 1e-3, 1e-2, 4, cycle_momentum=False),
    "to nothing": lambda o: schedulers.CosineAnnealingLR(o, 12),
}
_COUNTING = ("Adam", "AdamW", "NAdam", "Adamax", "Adadelta", "ASGD", "RMSprop", "Rprop")
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("SGD", {"foreach": False, "maximize": True}),
    *[(name, {"capturable": True}) for name in _COUNTING],
    ("Adam", {"weight_decay": 0.01, "capturable": True}),
    ("AdamW", {"foreach": False, "amsgrad": True, "capturable": True}),
    ("AdamW", {}),
    ("AdamW", {"fused": True}),
    ("Adam", {"fused": True, "weight_decay": 0.01}),
    ("Adagrad", {"fused": True, "lr_decay": 0.1}),
]
# By default it counts on the host, and in float32 on the device while it is captured.
RTOL_OF_COUNTS = 2e-4
_DAILY = {("SGD", "each step"), ("AdamW", "momentum too")}


def rows() -> Iterator[Any]:
    for name, options in OPTIMIZERS:
        for schedule in SCHEDULES:
            slow = () if (name, schedule) in _DAILY and not options else pytest.mark.slow
            yield pytest.param(
                name, options, schedule, id=f"{name} {options} {schedule}", marks=slow
            )


@pytest.mark.parametrize(("name", "options", "schedule"), [*rows()])
def test_schedule_changes_numbers_of_replays(
    name: str, options: dict[str, Any], schedule: str
) -> None:
    optimizer = getattr(torch.optim, name)
    has_momentum = "momentum" in options or "betas" in optimizer([torch.ones(1)]).defaults
    if schedule == "momentum too" and not has_momentum:
        make = lambda o: schedulers.OneCycleLR(o, 0.05, total_steps=60, cycle_momentum=False)  # noqa: E731
    else:
        make = SCHEDULES[schedule]
    step = compared(
        lambda p: optimizer(p, lr=0.01, **options),
        scheduled(make),
        rtol=0.0 if options != {} or name == "SGD" else RTOL_OF_COUNTS,
    )

    assert step.replays >= N_STEPS // 2


class ByHand(torch.optim.Optimizer):
    """An optimizer of somebody's: `rate(group)` is how far it goes."""

    def __init__(self, params: Any, rate: Callable[[dict[str, Any]], Any], **numbers: Any) -> None:
        super().__init__(params, {"lr": 0.0625, **numbers})
        self.rate = rate

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-self.rate(group))


def _halved(optimizer: torch.optim.Optimizer, i: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.0625 / (i + 2)


def _stays_then_falls(optimizer: torch.optim.Optimizer, i: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.0625 if i < N_CHANGES else 0.0625 / i


# How a rate follows from the numbers of a group; whether that can be replayed with other ones.
RATES: dict[str, tuple[Callable[[dict[str, Any]], Any], bool]] = {
    "as it is": (lambda g: g["lr"], True),
    "arithmetic": (lambda g: (1 - g["lr"]) * g["lr"] / 2 + g["lr"] ** 2 - g["lr"] % 0.03, True),
    "two numbers": (lambda g: g["lr"] * g["decay"], True),
    "in a tuple": (lambda g: g["lr"] * g["betas"][1], True),
    "the larger": (lambda g: max(g["lr"], 0.01), True),
    "a branch": (lambda g: g["lr"] if g["lr"] > 0.0125 else g["lr"] / 4, True),
    "another function": (lambda g: math.sqrt(g["lr"]), False),
    "a whole number": (lambda g: float(g["lr"] * 64 // 1) / 64, True),
    "in words": (lambda g: float(str(g["lr"])), False),
}


@pytest.mark.parametrize("change", [_halved, _stays_then_falls])
@pytest.mark.parametrize("rate", RATES)
def test_rates_of_an_optimizer_by_hand(rate: str, change: Change) -> None:
    compute, can_be_computed = RATES[rate]
    make = lambda p: ByHand(p, compute, decay=0.5, betas=(0.5, 0.25))  # noqa: E731
    if can_be_computed:
        step = compared(make, lambda _: change)
        assert step.replays > N_STEPS // 4
    else:
        with pytest.raises(CaptureError, match="a Python number changes"):
            compared(make, lambda _: change)


@pytest.mark.parametrize("rate", RATES)
def test_rates_that_stay_for_some_calls(rate: str) -> None:
    """Replays are of calls that all had one number: nothing is known of what depends on it."""
    compute, _ = RATES[rate]

    def change(optimizer: torch.optim.Optimizer, i: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.0625 / (1 + i // 6)

    step = compared(
        lambda p: ByHand(p, compute, decay=0.5, betas=(0.5, 0.25)),
        lambda _: change,
    )

    assert step.replays > N_STEPS // 4


def _of_two_groups(params: Any) -> torch.optim.Optimizer:
    first, *rest = list(params)
    return torch.optim.SGD([{"params": [first], "weight_decay": 0.5}, {"params": rest}], lr=0.0625)


def _diverges(optimizer: torch.optim.Optimizer, i: int) -> None:
    optimizer.param_groups[0]["lr"] = 0.0625 / (i + 2)
    optimizer.param_groups[1]["lr"] = 0.0625 / (i + 2 if i < N_CHANGES else 50)


def _decays_more(optimizer: torch.optim.Optimizer, i: int) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.5 - i / 64


def _becomes_whole(optimizer: torch.optim.Optimizer, i: int) -> None:
    for group in optimizer.param_groups:
        group["weight_decay"] = 1 / (i + 2) if i < N_CHANGES else 1


def _one_becomes_whole(optimizer: torch.optim.Optimizer, i: int) -> None:
    _halved(optimizer, i)
    _becomes_whole(optimizer, i)


def _is_loaded(optimizer: torch.optim.Optimizer, i: int) -> None:
    _halved(optimizer, i)
    if i == N_CHANGES:
        optimizer.load_state_dict(optimizer.state_dict())


def _gets_another_group(optimizer: torch.optim.Optimizer, i: int) -> None:
    _halved(optimizer, i)
    if i == N_CHANGES:
        last = optimizer.param_groups[-1]["params"].pop()
        optimizer.add_param_group({"params": [last], "lr": 0.125})


def _is_no_number(optimizer: torch.optim.Optimizer, i: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.0625 / (i + 2) if i % 8 else math.nan if i == 16 else -0.0


CHANGES = {
    "two groups whose rates part": _diverges,
    "weight decay of one group": _decays_more,
    "a float that becomes an int": _becomes_whole,
    "one of two floats that becomes an int": _one_becomes_whole,
    "loaded state": _is_loaded,
    "another group": _gets_another_group,
    "zeros and no number": _is_no_number,
}


@pytest.mark.parametrize("change", CHANGES)
def test_numbers_of_groups_change(change: str) -> None:
    plain, captured = Trained(_of_two_groups), Trained(_of_two_groups)
    step = torch_pjrt.capture(captured.step)

    losses = captured.run(step, CHANGES[change])

    expected = plain.run(plain.step, CHANGES[change])
    torch.testing.assert_close(losses, expected, rtol=0, atol=0, equal_nan=True)
    assert step.replays > 4


def test_numbers_that_are_the_same_by_chance_are_told_apart() -> None:
    def changes(optimizer: torch.optim.Optimizer, i: int) -> None:
        group = optimizer.param_groups[0]
        group["lr"] = group["weight_decay"] = 0.0625 if i < 6 else 0.0625 / i
        if i > N_CHANGES:
            group["lr"] = 0.001 * i

    step = compared(
        lambda p: torch.optim.AdamW(p, lr=0.0625, weight_decay=0.0625, eps=0.0625, fused=True),
        lambda _: changes,
    )

    assert step.replays > 6


def test_step_that_changes_its_rate_itself_is_refused() -> None:
    trained = Trained(lambda p: torch.optim.SGD(p, lr=0.0625))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = trained.step(x)
        trained.optimizer.param_groups[0]["lr"] *= 0.5
        return loss

    with pytest.raises(CaptureError, match="it changes what a replay would not change"):
        trained.run(torch_pjrt.capture(step), lambda *_: None)
    assert type(trained.optimizer.param_groups[0]["lr"]) is float


def test_numbers_are_plain_again_where_a_step_fails() -> None:
    trained = Trained(lambda p: torch.optim.SGD(p, lr=0.0625))
    fails = [False]

    def fail(*_: Any) -> None:
        if fails[0]:
            raise ZeroDivisionError

    hook = trained.optimizer.register_step_post_hook(fail)
    step = torch_pjrt.capture(trained.step)
    trained.run(step, _halved)
    assert step.replays > 4
    fails[0] = True

    with pytest.raises(ZeroDivisionError):
        for _ in range(N_STEPS):
            step(torch.ones(2, 4).to("pjrt"))

    assert type(trained.optimizer.param_groups[0]["lr"]) is float
    assert torch._C._len_torch_function_stack() == 0
    hook.remove()
    before = step.replays
    trained.run(step, _halved)
    assert step.replays > before
