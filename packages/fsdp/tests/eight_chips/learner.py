"""A small transformer that learns, in ways that a test asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_pjrt
from torch_pjrt.extend import counters

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 32, 4, 64, 8, 16


class Block(nn.Module):
    """Attention and an MLP. `inside`: the MLP is computed again for backward, within the block."""

    inside = False

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norms[1](x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (
            f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + (checkpoint(self.mlp, x, use_reentrant=False) if self.inside else self.mlp(x))


class Gpt(nn.Module):
    def __init__(
        self, n_layers: int = 2, width: int = WIDTH, tied: bool = False, again: str = ""
    ) -> None:
        super().__init__()
        self.again = again
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        for block in self.blocks:
            setattr(block, "inside", again == "inside")  # noqa: B010  a module's attribute is any

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            if self.again in ("reentrant", "around"):
                x = checkpoint(block, x, use_reentrant=self.again == "reentrant")
            else:
                x = block(x)
        return self.head(self.norm(x))


def trained(
    shard: Callable[[Any], Any] | None = None,
    *,
    n_steps: int = 10,
    how: str = "lazy",
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    prepare: Callable[[Gpt], Any] | None = None,
    accumulate: int = 1,
    clip: float | None = None,
    device: str = "cpu",
    **model: Any,
) -> tuple[list[float], Any, torch.optim.Optimizer, int]:
    """Losses of steps from the same start on the same batches; the model, its optimizer, programs compiled.

    shard  has the model lie somewhere; None: on one chip.
    """
    torch.manual_seed(0)
    network: Any = Gpt(**model)
    if prepare is not None:
        prepare(network)
    if device == "pjrt" or shard is None:
        network = network.to("pjrt")
    if shard is not None:
        network = shard(network)
    make = optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=how == "captured"))
    learned_by = make([p for p in network.parameters() if p.requires_grad])
    called = network
    if how == "compiled":
        called = torch.compile(network, backend="pjrt", dynamic=False, fullgraph=True)
    elif how == "compiled blocks":
        for block in network.blocks:
            block.compile(backend="pjrt", dynamic=False, fullgraph=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        learned_by.zero_grad()
        for of_x, of_y in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
            with torch.autocast("pjrt", torch.bfloat16, enabled=how == "autocast"):
                loss = F.cross_entropy(called(of_x).flatten(0, 1).float(), of_y.flatten())
            (loss / accumulate).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        learned_by.step()
        return loss.detach()  # pyright: ignore[reportPossiblyUnboundVariable]

    run = torch_pjrt.capture(step) if how == "captured" else step
    host = torch.Generator().manual_seed(1)
    before = counters.programs_compiled
    losses = []
    for _ in range(n_steps):
        text = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=host)
        x, y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        losses.append(run(x.to("pjrt"), y.to("pjrt")))
        torch_pjrt.sync()
    return (
        [loss.item() for loss in losses],
        network,
        learned_by,
        counters.programs_compiled - before,
    )
