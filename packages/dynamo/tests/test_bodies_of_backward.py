"""Gradients of scans whose states backward only hands on, as the zeros of one that nothing depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import scan

Tensor = torch.Tensor


def counted(x: Tensor) -> Tensor:
    return scan(lambda c, y: (c + 1, torch.mm(y, y).exp()), x.new_zeros(()), x)[1]


def two_that_nothing_depends_on(x: Tensor) -> Tensor:
    start = (x.new_zeros(()), x.new_ones(2))
    return scan(lambda c, y: ((c[0] + 1, c[1] * 2), torch.mm(y, y.sin())), start, x)[1]


def one_of_two(x: Tensor) -> Tensor:
    start = (x.new_zeros(()), x[0] * 2)
    return scan(lambda c, y: ((c[0] + 1, torch.mm(c[1], y)), torch.mm(y, c[1])), start, x)[1]


def handed_on(x: Tensor) -> Tensor:
    last, ys = scan(lambda c, y: (c.clone(), torch.mm(y, c)), x[0] * 3, x)
    return last + ys


def the_last_state(x: Tensor) -> Tensor:
    return scan(lambda c, y: (torch.mm(c, y), c + 1), x[0], x)[0]


SCANS = [
    counted,
    two_that_nothing_depends_on,
    one_of_two,
    handed_on,
    the_last_state,
]


@pytest.mark.parametrize("function", SCANS, ids=lambda f: f.__name__)
def test_gradients_are_those_of_the_loop_on_cpu(function: Callable[[Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    numbers = torch.linspace(-0.7, 0.9, 12).reshape(3, 2, 2)
    compiled: Any = torch.compile(function, backend="pjrt", fullgraph=True)

    expected, at_cpu = with_gradient(function, numbers)
    result, gradient = with_gradient(compiled, numbers.to("pjrt"))

    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(gradient.cpu(), at_cpu)


def with_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)
    y.square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad
