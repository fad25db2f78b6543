"""A captured step compiles one program, in its first call, whatever counts steps and checks indices."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn, optim

import torch_pjrt

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "AdamW, one by one": lambda p: optim.AdamW(p, foreach=False),
    "AdamW, fused": lambda p: optim.AdamW(p, fused=True),
    "AdamW, capturable": lambda p: optim.AdamW(p, capturable=True),
    "NAdam": optim.NAdam,
    "RMSprop": optim.RMSprop,
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
}


def training(
    made: Callable[..., optim.Optimizer], *, required: bool = True, is_odd: bool = False
) -> tuple[torch_pjrt.Captured, optim.Optimizer]:
    """A step of a model with indices; one that `is_odd` gives another number to an operator in each call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10)).to("pjrt")
    optimizer = made(model.parameters())
    calls: list[int] = []

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if is_odd:
            calls.append(1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * len(calls) if is_odd else loss).backward()
        optimizer.step()
        return loss.detach()

    return torch_pjrt.capture(step, required=required), optimizer


def batch(n: int = 6) -> list[torch.Tensor]:
    return [torch.randint(0, 10, (n,)).to("pjrt") for _ in range(2)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_calls_program_is_that_of_all(name: str, compiled: Callable[[], int]) -> None:
    step, _ = training(OPTIMIZERS[name])
    counts = []
    for _ in range(6):
        step(*batch()).item()
        counts.append(compiled())

    assert counts == [1] * 6
    assert step.replays == 3
    assert step.restarts == []


def test_a_smaller_batch_has_one_program_and_reads_no_counts(compiled: Callable[[], int]) -> None:
    step, _ = training(OPTIMIZERS["AdamW"])
    for _ in range(5):
        step(*batch())
    programs, read = compiled(), torch_pjrt.report().as_dict()["downloads"]

    for _ in range(5):
        step(*batch(3))

    assert compiled() == programs + 1
    assert torch_pjrt.report().as_dict()["downloads"] == read


def test_a_step_that_is_refused_reads_no_counts() -> None:
    step, _ = training(OPTIMIZERS["AdamW"], required=False, is_odd=True)
    with pytest.warns(UserWarning, match="cannot be captured"):
        for _ in range(10):
            step(*batch())
    read = torch_pjrt.report().as_dict()["downloads"]

    for _ in range(5):
        step(*batch())

    assert torch_pjrt.report().as_dict()["downloads"] == read


def test_options_of_optimizers_are_as_they_were() -> None:
    """Those of another thread's all the time; those of the step's own afterwards."""
    step, own = training(OPTIMIZERS["AdamW"])
    w = torch.ones(3, device="pjrt", requires_grad=True)
    w.grad = torch.ones_like(w)
    other = optim.AdamW([w])
    seen: list[bool] = []

    def train() -> None:
        other.step()
        seen.append(other.param_groups[0]["capturable"])

    original = own.zero_grad

    def zero_grad() -> None:
        original()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    own.zero_grad = zero_grad  # type: ignore[method-assign]
    step(*batch())

    assert seen == [False]
    assert other.state[w]["step"].device.type == "cpu"
    assert own.param_groups[0]["capturable"] is False


def test_an_optimizer_of_the_cpu_counts_as_ever() -> None:
    w = torch.ones(3, requires_grad=True)
    w.grad = torch.ones_like(w)
    on_cpu = optim.AdamW([w])
    x = torch.zeros(3).to("pjrt")

    @torch_pjrt.capture(required=False)
    def step(y: torch.Tensor) -> None:
        x.add_(y)
        on_cpu.step()

    with pytest.warns(UserWarning, match="cannot be captured"):
        for _ in range(8):
            step(torch.ones(3).to("pjrt"))

    assert x.tolist() == [8.0] * 3
    assert on_cpu.state[w]["step"].item() == 8
    assert on_cpu.param_groups[0]["capturable"] is False
