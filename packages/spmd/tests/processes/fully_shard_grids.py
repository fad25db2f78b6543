"""Cases of `fully_shard` over meshes of more than one dim, or over another dim of parameters."""

from __future__ import annotations

from typing import Any

import torch
from fully_shard_blocks import adamw, losses_and_weights, sgd, sharded
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel
from training_loop import (
    Losses,
    batch,
    grid_of,
    loss_of,
    mesh_of,
    seeded,
    step_counted,
    sums_of,
    trained,
)


def hybrid(device: str) -> Losses:
    model = sharded(seeded().to(device), grid_of(device, "replicate", "shard"))
    return losses_and_weights(model, device)


def hybrid_accumulated(device: str) -> Losses:
    """Reduced over shards after each batch, over replicas after the last."""
    model = sharded(seeded().to(device), grid_of(device, "replicate", "shard"))
    optimizer, losses = sgd(model.parameters()), []
    for step in range(3):
        for i in range(2):
            model.set_requires_all_reduce(i == 1)
            loss = loss_of(model, batch(2 * step + i, device))
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return [*[loss.item() for loss in losses], *sums_of(model.state_dict())]


def tensor_parallel(device: str) -> Losses:
    mesh = grid_of(device, "data", "model")
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).to(device)
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer, losses = adamw(model.parameters()), []
    for step in range(4):
        numbers = torch.Generator().manual_seed(10 * step + mesh["data"].get_local_rank())
        x = torch.randn(4, 6, generator=numbers).to(device)
        with step_counted():
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    return [*[loss.item() for loss in losses], *sums_of(model.state_dict())]


def ddp_and_tensor_parallel(device: str) -> Losses:
    mesh = grid_of(device, "data", "model")
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).to(device)
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    _pre_dp_module_transform(model)  # as PyTorch has it: DDP sees the parts
    ddp = DistributedDataParallel(model, process_group=mesh["data"].get_group())
    optimizer, losses = adamw(ddp.parameters()), []
    for step in range(4):
        numbers = torch.Generator().manual_seed(10 * step + mesh["data"].get_local_rank())
        x = torch.randn(4, 6, generator=numbers).to(device)
        with step_counted():
            optimizer.zero_grad()
            loss = (ddp(x) - x).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    return [*[loss.item() for loss in losses], *sums_of(model.state_dict())]


def on_another_dim(device: str) -> Losses:
    """Weights sharded by columns."""

    def place(p: nn.Parameter) -> Shard:
        return Shard(p.ndim - 1)

    model = sharded(seeded().to(device), mesh_of(device), shard_placement_fn=place)
    return losses_and_weights(model, device)


def replicated(device: str) -> Losses:
    model = replicate(seeded().to(device))
    return [*trained(model, sgd(model.parameters()), device), *sums_of(model.state_dict())]
