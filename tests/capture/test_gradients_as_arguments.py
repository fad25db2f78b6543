"""A captured step that adds to gradients which it is given."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import torch_pjrt


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to("pjrt")


def adding(model: nn.Module) -> Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]:
    def step(gradients: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


def test_gradients_that_are_arguments_are_added_to() -> None:
    """Each other call has gradients of the call before, which are other tensors each time."""
    model, other = net(), net()
    captured, plain = torch_pjrt.capture(adding(model)), adding(other)
    for i in range(24):
        x = torch.full((3, 4), 1 / (i + 1)).to("pjrt")
        for m, step in ((model, captured), (other, plain)):
            step([p.grad for p in m.parameters() if p.grad is not None], x)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            assert p.grad.equal(q.grad)
            if i % 2:
                p.grad = q.grad = None
    assert captured.replays >= 16
    assert captured.restarts == []
