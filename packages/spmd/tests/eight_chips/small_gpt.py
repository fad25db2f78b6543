"""A small GPT, ways to train it, and ways to spread it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_pjrt
from torch_pjrt_spmd import Mesh, distribute_tensor, mark_sharding, use_mesh

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 32, 4, 64, 16, 16


class Block(nn.Module):
    """Attention and an MLP; `spread` marks its activations."""

    spread: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (
            f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        if self.spread is not None:
            x = self.spread(x)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self, n_layers: int = 2, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


Spread = tuple[Mesh, tuple[Any, ...]]


def data_parallel(model: Gpt, target: str | None = None, n_chips: int = 8) -> Spread:
    return _mesh(target, (n_chips,), ("data",)), ("data", None)


def tensor_parallel(model: Gpt, target: str | None = None, n_chips: int = 8) -> Spread:
    mesh = _mesh(target, (n_chips // 4, 4), ("data", "model"))
    _megatron(model, mesh)
    return mesh, ("data", None)


def sequence_parallel(model: Gpt, target: str | None = None, n_chips: int = 8) -> Spread:
    mesh = _mesh(target, (n_chips // 4, 2, 2), ("data", "sequence", "model"))
    _megatron(model, mesh)
    Block.spread = staticmethod(lambda x: mark_sharding(x, mesh, ("data", "sequence", None)))
    return mesh, ("data", None)


def fully_sharded(model: Gpt, target: str | None = None, n_chips: int = 8) -> Spread:
    mesh = _mesh(target, (n_chips,), ("data",))
    for p in model.parameters():
        mark_sharding(p, mesh, ("data",))
    return mesh, ("data", None)


def _mesh(target: str | None, shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    return Mesh(shape, names) if target is None else Mesh.for_target(target, shape, names)


def _megatron(model: Gpt, mesh: Mesh) -> None:
    for block in cast("list[Block]", list(model.blocks)):
        for by_column in (block.q, block.k, block.v, block.up):
            mark_sharding(by_column.weight, mesh, ("model", None))
            mark_sharding(by_column.bias, mesh, ("model",))
        for by_row in (block.out, block.down):
            mark_sharding(by_row.weight, mesh, (None, "model"))


WAYS = {
    "data 8": data_parallel,
    "data 2, tensor 4": tensor_parallel,
    "data 2, sequence 2, tensor 2": sequence_parallel,
    "fully sharded 8": fully_sharded,
}


def trained(
    spread: Callable[[Gpt], Spread] | None = None,
    how: str = "lazy",
    n_steps: int = 4,
    n_layers: int = 2,
) -> tuple[list[float], Gpt, torch.optim.Optimizer]:
    """The losses of some steps from the same start on the same batches; the model, and its optimizer."""
    Block.spread = None
    torch.manual_seed(0)
    model = Gpt(n_layers, checkpointed=how == "checkpointed").to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=how == "captured")
    mesh, spec = spread(model) if spread is not None else (None, ())
    network = (
        torch.compile(model, backend="pjrt", dynamic=False, fullgraph=True)
        if how == "compiled"
        else model
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("pjrt", torch.bfloat16, enabled=how == "autocast"):
            loss = F.cross_entropy(network(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = torch_pjrt.capture(step) if how == "captured" else step
    host = torch.Generator().manual_seed(1)
    losses = []
    with use_mesh(mesh):
        for _ in range(n_steps):
            text = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=host)
            parts = (text[:, :-1].contiguous(), text[:, 1:].contiguous())
            batch = [
                distribute_tensor(t, mesh, spec) if mesh is not None else t.to("pjrt")
                for t in parts
            ]
            losses.append(run(*batch))
    return [loss.item() for loss in losses], model, optimizer
