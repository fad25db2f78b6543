"""`torch.autograd.detect_anomaly` does what it does on CPU, and names the line of the forward."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn


class GivesNaN(torch.autograd.Function):
    """Its backward makes NaN of anything."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * float("nan")


def root_of_zero(device: str) -> torch.Tensor:
    x = torch.zeros(3, device=device, requires_grad=True)
    y = x.sqrt()  # the line
    (y * 0).sum().backward()
    return x.grad  # type: ignore[return-value]


def own_function(device: str) -> torch.Tensor:
    x = torch.ones(3, device=device, requires_grad=True)
    y = GivesNaN.apply(x * 2)  # the line
    y.sum().backward()
    return x.grad  # type: ignore[return-value]


def overwritten(device: str) -> torch.Tensor:
    x = torch.ones(3, device=device, requires_grad=True)
    y = x.exp()  # the line
    z = y * 2
    y.add_(1)
    (z + y).sum().backward()
    return x.grad  # type: ignore[return-value]


def in_a_module(device: str) -> torch.Tensor:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).to(device)
    for p in model.parameters():
        nn.init.zeros_(p)
    y = model(torch.ones(1, 2, device=device))
    y = y / y.norm() / y.norm()  # the line
    y.sum().backward()
    return model[0].weight.grad  # type: ignore[return-value]


def all_is_well(device: str) -> torch.Tensor:
    x = torch.ones(3, device=device, requires_grad=True)
    x.exp().sum().backward()
    return x.grad  # type: ignore[return-value]


CASES = [root_of_zero, own_function, overwritten, in_a_module, all_is_well]


def outcome(case: Callable[[str], torch.Tensor], device: str, *, check_nan: bool) -> list[str]:
    """The error or the gradient, and whether a warning has the line which is marked."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.autograd.set_detect_anomaly(True, check_nan=check_nan):
                told.append(str(case(device).tolist()))
        except RuntimeError as error:
            told.append(str(error).replace("pjrtFloatType", "torch.FloatTensor"))
    tracebacks = [
        str(w.message).partition("Traceback of forward call")[2]
        for w in caught
        if "Traceback of forward call" in str(w.message)
    ]
    told += [f"the line is told: {'# the line' in text}" for text in tracebacks]
    return told


@pytest.mark.parametrize("check_nan", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_error_and_line_are_those_of_the_cpu(
    case: Callable[[str], torch.Tensor], check_nan: bool
) -> None:
    assert outcome(case, "pjrt", check_nan=check_nan) == outcome(case, "cpu", check_nan=check_nan)


def test_function_that_gave_a_nan_is_named_with_the_line_of_its_forward() -> None:
    told = outcome(root_of_zero, "pjrt", check_nan=True)

    assert told[0] == "Function 'SqrtBackward0' returned nan values in its 0th output."
    assert told[1:] == ["the line is told: True"]


def test_backward_works_again_after_an_anomaly() -> None:
    outcome(root_of_zero, "pjrt", check_nan=True)

    assert all_is_well("pjrt").tolist() == all_is_well("cpu").tolist()
