"""How cases of `fully_shard` shard a model of blocks and train it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from training_loop import (
    Case,
    Losses,
    Model,
    mesh_of,
    seeded,
    sums_of,
    trained,
)

Optimizers = Callable[[Any], torch.optim.Optimizer]
adamw: Optimizers = partial(torch.optim.AdamW, lr=0.01)
sgd: Optimizers = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def sharded(model: Model, mesh: Any, **how: Any) -> Any:
    """Each block by itself, and what is left."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


def losses_and_weights(model: Any, device: str, optimizer: Optimizers = sgd, **how: Any) -> Losses:
    losses = trained(model, optimizer(model.parameters()), device, **how)
    return [*losses, *sums_of(model.state_dict())]


def plain(optimizer: Optimizers = sgd, sizes: dict[str, Any] = {}, **how: Any) -> Case:  # noqa: B006  not written
    def case(device: str) -> Losses:
        model = sharded(seeded(**sizes).to(device), mesh_of(device), **how)
        return losses_and_weights(model, device, optimizer)

    return case
