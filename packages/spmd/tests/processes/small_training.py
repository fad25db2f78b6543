"""A small network, batches that depend on step and rank, and the plain training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Wrap = Callable[[nn.Module], nn.Module]


class Network(nn.Module):
    """Three layers; every other step one more, if there is one that may go unused."""

    def __init__(self, normalized: bool, unused: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16) if normalized else nn.Identity()
        self.second = nn.Linear(16, 16)
        self.third = nn.Linear(16, 4)
        self.sometimes = nn.Linear(16, 16) if unused else None
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x)).relu()
        if self.sometimes is not None and self.calls % 2 == 0:
            h = h + self.sometimes(h)
        self.calls += 1
        return self.third(self.second(h).relu())


def network(*, normalized: bool = False, unused: bool = False) -> Any:
    """The same weights on each rank."""
    torch.manual_seed(0)
    return Network(normalized, unused)


def batch(step: int, device: str, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Six rows of a rank, of this one unless said, and their classes."""
    rank = dist.get_rank() if rank is None else rank
    numbers = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(6, 8, generator=numbers)
    return x.to(device), torch.randint(0, 4, (6,), generator=numbers).to(device)


def loss_of(model: nn.Module, step: int, device: str, rank: int | None = None) -> torch.Tensor:
    x, y = batch(step, device, rank)
    return nn.functional.cross_entropy(model(x), y)


def train(device: str, wrap: Wrap, **how: bool) -> list[float]:
    """Losses of four steps, and then the sum of each parameter."""
    model = wrap(network(**how).to(device))
    losses = steps(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), device)
    return [*losses, *(p.detach().abs().sum().item() for p in model.parameters())]


def steps(
    model: nn.Module, optimizer: Any, device: str, n: int = 4, rank: int | None = None
) -> list[float]:
    losses = []
    for step in range(n):
        optimizer.zero_grad()
        loss = loss_of(model, step, device, rank)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().item())
    return losses
