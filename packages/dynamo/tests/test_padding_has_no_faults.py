"""What an operator refuses by value is looked for among the true elements alone: padding has no faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_pjrt

Tensor = torch.Tensor

INTEGERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "fmod": torch.fmod,
    "div, floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div, trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "inverses": lambda x, t: F.binary_cross_entropy(1 / x, t),
    "each": lambda x, t: F.binary_cross_entropy(1 / x, t, reduction="none"),
    "a sum of logarithms": lambda x, t: F.binary_cross_entropy(1 - x.log() / x, t, reduction="sum"),
}


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn, backend="pjrt", dynamic=True)


@pytest.mark.parametrize("fn", INTEGERS.values(), ids=INTEGERS)
def test_padding_is_no_divisor(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    own = compiled(fn)

    for n in (5, 6, 9):
        a, b = torch.arange(n), torch.arange(n) % 3 + 1
        assert torch.equal(own(a.to("pjrt"), b.to("pjrt")).cpu(), fn(a, b))
    torch.accelerator.synchronize()


def test_a_divisor_of_0_is_found() -> None:
    own = compiled(lambda a, b: a // (b - 1))

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        own(torch.arange(5, device="pjrt"), torch.arange(5, device="pjrt")).cpu()


@pytest.mark.parametrize("fn", LOSSES.values(), ids=LOSSES)
def test_padding_is_no_probability(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    own = compiled(fn)

    for n in (5, 6, 9):
        x, target = torch.full((n, 3), 2.0), torch.rand(n, 3)
        theirs = fn(x, target)
        torch.testing.assert_close(own(x.to("pjrt"), target.to("pjrt")).cpu(), theirs)
    torch.accelerator.synchronize()


def test_a_result_is_whole_after_its_program_was_shown() -> None:
    own = compiled(lambda x: x + 1)
    x = torch.randn(3, 5)

    for n in (3, 2):
        y = own(x[:n].to("pjrt"))
        assert "stablehlo" in torch_pjrt.to_stablehlo(y)
        assert torch.equal(y.cpu(), x[:n] + 1)
