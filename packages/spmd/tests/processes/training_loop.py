"""What the cases of sharded training share: models, the plain loop, and how many programs each step was.

Data and weights are drawn on the CPU, so that they are the same on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from torch_pjrt.extend import counters

Losses = list[float]
Case = Callable[[str], Losses]

WORDS = 16


class Block(nn.Module):
    """A residual block of two products."""

    def __init__(self, width: int, hidden: int, device: str | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, device=device)
        self.up = nn.Linear(width, hidden, device=device)
        self.down = nn.Linear(hidden, width, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Words in, logits of words out. `is_tied`: the head is the embedding."""

    def __init__(
        self,
        width: int = 8,
        n_blocks: int = 2,
        *,
        hidden: int | None = None,
        is_tied: bool = False,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width, device=device)
        self.blocks = nn.ModuleList(
            Block(width, hidden or 2 * width, device) for _ in range(n_blocks)
        )
        self.head = nn.Linear(width, WORDS, bias=False, device=device)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# How FSDP1 is told to wrap each block.
BlockPolicy = ModuleWrapPolicy({Block})


def seeded(seed: int = 0, **how: Any) -> Model:
    """The same weights on each rank, on the CPU."""
    torch.manual_seed(seed)
    return Model(**how)


def mesh_of(device: str) -> DeviceMesh:
    """Of all processes, in one dim."""
    return init_device_mesh(device, (dist.get_world_size(),))


def grid_of(device: str, *names: str) -> DeviceMesh:
    """Of all processes, in two dims, of which the second has two."""
    return init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=names)


def batch(step: int, device: str, rank: int | None = None) -> torch.Tensor:
    """Four lines of five words."""
    rank = dist.get_rank() if rank is None else rank
    numbers = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, WORDS, (4, 5), generator=numbers).to(device)


def loss_of(model: Any, words: torch.Tensor) -> torch.Tensor:
    """Of saying the next word, in float32."""
    logits = model(words)[:, :-1].flatten(0, 1).float()
    return nn.functional.cross_entropy(logits, words[:, 1:].flatten())


# How many programs the steps of this process were, of the case that runs.
programs: list[int] = []


@contextmanager
def step_counted() -> Iterator[None]:
    """The programs that the block runs are those of a step."""
    before = counters.programs_run
    yield
    programs.append(counters.programs_run - before)


def trained(
    model: Any,
    optimizer: torch.optim.Optimizer,
    device: str,
    *,
    n: int = 3,
    rank: int | None = None,
    loss: Callable[[Any, torch.Tensor], torch.Tensor] = loss_of,
    before_step: Callable[[], Any] = lambda: None,
) -> Losses:
    """The losses of n steps; nothing is read before the end. `rank`: whose data, where all have the same."""
    losses = []
    for step in range(n):
        words = batch(step, device, rank)
        with step_counted():
            optimizer.zero_grad()
            found = loss(model, words)
            found.backward()
            before_step()
            optimizer.step()
        losses.append(found.detach())
    return [found.item() for found in losses]


def sums_of(state: dict[str, Any]) -> Losses:
    """Of each tensor of a state, sharded or not, the sum of its numbers' sizes; in the order of names."""
    sums = []
    for name in sorted(state):
        value = state[name]
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        sums.append(whole.detach().abs().sum().item())
    return sums
