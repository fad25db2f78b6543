"""Training as PyTorch spreads it, unmodified, on the device and by gloo on CPU tensors: losses must be equal.

A process that prints, for each case, what came of it on both: losses, and what else is compared.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import sharded_training
import torch
import torch.distributed as dist
from small_training import Wrap, batch, loss_of, network, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

Losses = list[float]
Case = Callable[[str], Losses]


def ddp(**options: Any) -> Case:
    return lambda device: train(device, lambda m: DDP(m, **options))


def with_hook(hook: Any, state: Callable[[], Any] = lambda: None) -> Case:
    def wrap(model: nn.Module) -> nn.Module:
        wrapped = DDP(
            model
        )  # of several buckets gloo's threads start PowerSGD's collectives in any order
        wrapped.register_comm_hook(state(), hook)
        return wrapped

    return lambda device: train(device, wrap)


def power_sgd() -> Any:
    make: Any = powerSGD_hook.PowerSGDState
    return make(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)


def local_sgd() -> Any:
    everyone: Any = dist.group.WORLD
    return post_localSGD_hook.PostLocalSGDState(None, everyone, 2)


def unused(device: str) -> Losses:
    wrap: Wrap = lambda m: DDP(m, find_unused_parameters=True)  # noqa: E731
    return train(device, wrap, unused=True)


def no_sync(device: str) -> Losses:
    model = DDP(network().to(device))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(6):
        with nullcontext() if step % 2 else model.no_sync():
            loss = loss_of(model, step, device)
            loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach().item())
    return losses


def join(device: str) -> Losses:
    """Each rank has one step more than the one before."""
    model = DDP(network().to(device))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    with model.join():
        for step in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            loss = loss_of(model, step, device)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().item())
    return [*losses, *(p.detach().abs().sum().item() for p in model.parameters())]


def zero(device: str) -> Losses:
    model = DDP(network().to(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, step, device)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().item())
    optimizer.consolidate_state_dict(0)
    return losses


def batch_norm_over_ranks(device: str) -> Losses:
    """On the CPU all ranks' rows in one batch, for PyTorch has no SyncBatchNorm there."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model: Any = network(normalized=True)
    if device != "cpu":
        model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(4):
        optimizer.zero_grad()
        if device == "cpu":
            parts = [batch(step, device, r) for r in range(n)]
            x, y = (torch.cat(part) for part in zip(*parts, strict=True))
            out = model(x)
            nn.functional.cross_entropy(out, y).backward()
            out, y = (part.detach().chunk(n)[rank] for part in (out, y))
        else:
            x, y = batch(step, device)
            out = model(x)
            nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
        losses.append(nn.functional.cross_entropy(out.detach(), y).item())
    norm = model.norm if device == "cpu" else model.module.norm
    return [*losses, norm.running_mean.sum().item(), norm.running_var.sum().item()]


CASES: dict[str, Case] = {
    "DDP": ddp(),
    "DDP, small buckets": ddp(bucket_cap_mb=0.0005),
    "DDP, gradients as views of buckets": ddp(gradient_as_bucket_view=True, bucket_cap_mb=0.0005),
    "DDP, static graph": ddp(static_graph=True),
    "DDP, unused parameters": unused,
    "DDP, no_sync": no_sync,
    "DDP, join": join,
    "DDP, hook: allreduce": with_hook(default_hooks.allreduce_hook),
    "DDP, hook: fp16_compress": with_hook(default_hooks.fp16_compress_hook),
    "DDP, hook: PowerSGD": with_hook(powerSGD_hook.powerSGD_hook, power_sgd),
    "DDP, hook: post_localSGD": with_hook(post_localSGD_hook.post_localSGD_hook, local_sgd),
    "SyncBatchNorm": batch_norm_over_ranks,
    "ZeroRedundancyOptimizer": zero,
    **sharded_training.CASES,
}


def main() -> None:
    warnings.filterwarnings("ignore", category=FutureWarning)
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    for name, case in CASES.items():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        line: dict[str, Any] = {"case": name}
        for device in ("cpu", "pjrt"):
            try:
                line[device] = case(device)
            except Exception as error:
                line[device] = f"{type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
