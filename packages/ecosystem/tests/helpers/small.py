"""A small model, its batches, and what a step costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from torch_pjrt.extend import counters


def model(dropout: float = 0.0) -> nn.Sequential:
    """The same parameters each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4))


def rows(n: int = 32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same rows each time: eight numbers, and one of four labels."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, generator=generator), torch.randint(4, (), generator=generator))
        for _ in range(n)
    ]


class Classifier(nn.Module):
    """A model as `Trainer` wants one: it gives its loss and its logits."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = model(dropout)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def collate(given: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch of rows."""
    return {name: torch.stack([row[name] for row in given]) for name in given[0]}


@dataclass
class Costs:
    """Reads, programs run and programs compiled between two calls of `mark`; calls of fallbacks."""

    marks: list[tuple[int, int, int]] = field(default_factory=list)
    fallbacks_before: int = field(default_factory=lambda: sum(counters.fallbacks.values()))

    def mark(self) -> None:
        """A step begins."""
        self.marks.append((counters.downloads, counters.programs_run, counters.programs_compiled))

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """What each step cost but the last, which has no end."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return [(b[0] - a[0], b[1] - a[1], b[2] - a[2]) for a, b in pairs]

    @property
    def fallbacks(self) -> int:
        """Calls of operators that ran on the CPU since this was made."""
        return sum(counters.fallbacks.values()) - self.fallbacks_before
