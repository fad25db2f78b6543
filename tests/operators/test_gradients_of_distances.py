"""Where rows are equal the gradient of their distance is 0, even after one that is NaN, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
import torch

POWERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, inf)
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a quotient": lambda y: y / y,  # NaN where the distance is 0, and so is its gradient
    "nan": lambda y: y * torch.nan,
    "squares": lambda y: y * y,
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("p", POWERS)
def test_gradients_are_those_of_the_cpu(p: float, loss: str) -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        rows = torch.tensor([[0.0, 1.0], [2.0, -3.0], [0.0, 1.0]]).to(device).requires_grad_()
        distances = torch.cdist(rows, rows, p), torch.pdist(rows, p)
        return [torch.autograd.grad(LOSSES[loss](y).sum(), rows)[0].cpu() for y in distances]

    torch.testing.assert_close(gradients("pjrt"), gradients("cpu"), equal_nan=True)
