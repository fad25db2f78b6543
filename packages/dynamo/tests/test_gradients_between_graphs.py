"""Several compiled functions behind each other: gradients reach what they reach without a compiler."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

Tensor = torch.Tensor
Function = Callable[..., tuple[Tensor, ...]]
N_PROGRAMS = 60


def function_of(draw: random.Random, n_inputs: int) -> Function:
    """Of so many tensors of shape (3, 3), one to three more; what it does was drawn."""
    n_results = draw.randint(1, 3)
    recipes = []
    for _ in range(n_results):
        taken = draw.sample(range(n_inputs), draw.randint(1, n_inputs))
        cut = [i for i in taken if draw.random() < 0.35]
        recipes.append((taken, cut, draw.choice((torch.sin, torch.tanh, torch.square))))

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        results = []
        for taken, cut, op in recipes:
            given = [tensors[i].detach() if i in cut else tensors[i] for i in taken]
            total = given[0]
            for x in given[1:]:
                total = total @ x * 0.5
            results.append(op(total))
        return tuple(results)

    return function


def gradients(seed: int, device: str, compiled: Callable[[Function], Function]) -> Any:
    """Of three leaves, after one or two backwards: None where none came, and the class of what was raised."""
    draw = random.Random(seed)
    leaves = [
        torch.linspace(-1, 1 + n, 9).reshape(3, 3).to(device).requires_grad_(draw.random() < 0.8)
        for n in range(3)
    ]
    leaves[0].requires_grad_()
    made = list(leaves)
    for _ in range(draw.randint(2, 3)):
        chosen = draw.sample(made, min(len(made), draw.randint(1, 4)))
        made += compiled(function_of(draw, len(chosen)))(*chosen)
    results = draw.sample(made[3:], min(2, len(made) - 3))
    error = None
    try:
        for result in results:
            if result.requires_grad:
                result.sum().backward()
    except RuntimeError as raised:
        error = type(raised)
    return [None if x.grad is None else x.grad.cpu() for x in leaves], error


@pytest.mark.parametrize("seed", range(N_PROGRAMS))
def test_they_reach_the_same_leaves(seed: int) -> None:
    """As PyTorch's own compiled graphs do. What was reached before an error depends on who runs first."""

    def by(backend: str) -> Callable[[Function], Function]:
        return lambda function: torch.compile(function, backend=backend)

    wanted, wanted_error = gradients(seed, "cpu", by("aot_eager"))
    torch._dynamo.reset()

    found, error = gradients(seed, "pjrt", by("pjrt"))

    assert error == wanted_error
    if error is None:
        torch.testing.assert_close(found, wanted)
