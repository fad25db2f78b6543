"""Captured steps that read values, make tensors from the host or leave gradients do as the step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.errors import CaptureError

Step = Callable[..., Any]


def refusal_of(step: Step, *args: Any) -> str:
    captured = torch_pjrt.capture(step)
    with pytest.raises(CaptureError) as refused:
        for _ in range(8):
            captured(*args)
    return str(refused.value)


def trainer() -> tuple[nn.Linear, Step]:
    """A model with dropout, and a step that reads before it trains and after."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.dropout(x, 0.25)
        if (x.sum() > 0).item():
            y = y * 2
        optimizer.zero_grad()
        loss = (model(y) ** 2).sum()
        loss.backward()
        optimizer.step()
        if torch.isnan(loss):
            with torch.no_grad():
                model.weight.fill_(1)
        return loss.detach()

    return model, step


def states(model: nn.Module) -> list[list[float]]:
    return [p.detach().cpu().flatten().tolist() for p in model.parameters()]


@pytest.mark.parametrize("odd", [0, 3, 4, 6, 7])
def test_a_value_that_is_read_decides_as_in_the_step_itself(odd: int):
    model, plain = trainer()
    other, same = trainer()
    captured = torch_pjrt.capture(same)
    xs = [torch.full((2, 4), -1.0 if i == odd else 1.0 + i) for i in range(14)]
    torch.manual_seed(3)
    expected = [plain(x.to("pjrt")).item() for x in xs]
    torch.manual_seed(3)
    assert [captured(x.to("pjrt")).item() for x in xs] == expected
    assert states(model) == states(other)
    assert captured.replays >= 5
    assert len(captured.restarts) == (odd > 2)


def test_nothing_is_written_before_the_last_read_is_the_same():
    model, plain = trainer()
    other, same = trainer()
    captured = torch_pjrt.capture(same)
    x = torch.ones(2, 4).to("pjrt")
    for _ in range(5):
        torch.manual_seed(1)
        plain(x)
        torch.manual_seed(1)
        captured(x)
    for m in (model, other):
        with torch.no_grad():
            m.weight.fill_(float("nan"))  # the read after the optimizer's step finds it
    assert captured.replays == 2
    plain(x)
    captured(x)
    torch.testing.assert_close(
        model.weight.cpu(), other.weight.cpu(), rtol=0, atol=0, equal_nan=True
    )
    assert captured.replays == 2
    assert "a value that the step reads was False, is True" in captured.restarts[0]


def test_values_that_change_with_each_call_are_refused():
    total = torch.zeros((), device="pjrt")

    def step(x: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum())
        return x * 2 if total > 1e9 or total.item() == -1 else x + 1

    text = refusal_of(step, torch.ones(2, device="pjrt"))
    assert "reads values of tensors that change" in text


def test_tensors_from_the_host_whose_content_repeats_are_constants():
    def step(x: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor([1.0, 0.0]).to("pjrt")
        mask += torch.tensor([0.0, 3.0]).to("pjrt")  # its memory is taken
        return x * mask

    captured = torch_pjrt.capture(step)
    for i in range(8):
        assert captured(torch.full((2,), float(i)).to("pjrt")).tolist() == [i, 3 * i]
    assert captured.replays == 5


def test_tensors_from_the_host_whose_content_changes_are_refused():
    numbers = itertools.count()

    def step(x: torch.Tensor) -> torch.Tensor:
        return x + torch.full((2,), float(next(numbers))).to("pjrt")

    text = refusal_of(step, torch.ones(2, device="pjrt"))
    assert "content changes from call to call (float32[2])" in text


def test_random_numbers_of_the_host_are_refused():
    def step(x: torch.Tensor) -> torch.Tensor:
        torch.rand(1)
        return x + torch.ones(2).to("pjrt")

    text = refusal_of(step, torch.ones(2, device="pjrt"))
    assert "random numbers on the host" in text


def test_arrays_from_elsewhere_are_refused():
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + torch_pjrt.from_jax(torch_pjrt.to_jax(x) * 2)

    assert "arrays from elsewhere" in refusal_of(step, torch.ones(2, device="pjrt"))


def test_a_copy_that_computes_nothing_is_refused():
    source, target = torch.ones(2, device="pjrt"), torch.zeros(2, device="pjrt")

    def step(x: torch.Tensor) -> torch.Tensor:
        target.copy_(source)
        return x + 1

    assert "copies into 1 tensors" in refusal_of(step, torch.ones(2, device="pjrt"))


def test_a_captured_step_in_another_is_refused():
    inner = torch_pjrt.capture(lambda x: x * 2)
    for _ in range(4):
        inner(torch.ones(2, device="pjrt"))
    text = refusal_of(lambda x: inner(x) + 1, torch.ones(2, device="pjrt"))
    assert "calls another captured step" in text


def test_gradients_are_there_for_an_optimizer_outside():
    def made() -> tuple[nn.Module, torch.optim.Optimizer, Step]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to("pjrt")

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = (model(x) ** 2).sum()
            loss.backward()
            return loss.detach()

        return model, torch.optim.SGD(model.parameters(), lr=0.01), step

    model, optimizer, plain = made()
    other, same, step = made()
    captured = torch_pjrt.capture(step)
    for i in range(12):
        x = torch.randn(5, 4).to("pjrt")
        for o, f in ((optimizer, plain), (same, captured)):
            f(x)
            if i != 6:  # once they add up
                o.step()
                o.zero_grad()
        assert states(model) == states(other)
    assert captured.replays > 3


def test_gradients_of_an_argument_are_its_own():
    captured = torch_pjrt.capture(lambda x: (x * x).sum().backward())
    for i in range(7):
        x = torch.full((2,), float(i)).to("pjrt").requires_grad_()
        captured(x)
        assert x.grad is not None
        assert x.grad.tolist() == [2 * i, 2 * i]
    assert captured.replays == 4


def test_what_an_argument_holds_is_seen():
    model = nn.Linear(2, 2).to("pjrt")

    @torch_pjrt.capture
    @torch.no_grad()
    def predict(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    x = torch.ones(1, 2).to("pjrt")
    for _ in range(5):
        predict(model, x)
    model.weight = nn.Parameter(torch.ones(2, 2).to("pjrt"))
    model.bias = None  # type: ignore[assignment]
    assert predict(model, x).tolist() == [[2, 2]]
    assert predict.replays == 2


def test_masks_of_another_range_have_another_recording() -> None:
    """What the host knows of a mask is part of a recording: here that its indices fit."""
    table = torch.tensor([[1.0, 2.0]]).to("pjrt")
    step = torch_pjrt.capture(lambda index: table[index[0]] * 2)
    none, some = torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[0, 1, 0]])
    for _ in range(6):
        assert step(none.to("pjrt")).cpu().tolist() == [[2.0, 4.0]] * 3
    assert step.replays >= 3

    for _ in range(6):
        with pytest.raises(IndexError):
            step(some.to("pjrt")).cpu()

    assert step(none.to("pjrt")).cpu().tolist() == [[2.0, 4.0]] * 3
