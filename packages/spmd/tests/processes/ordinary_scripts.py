"""A process of a run that trains as ordinary scripts do; prints how many programs each step compiled and ran.

Arguments: which ways. With `grids`, models over two dims of a mesh. Each way to spread a model has widths
of its own, so that no two share a program. The loop is one for all: a loader, gradients that are clipped or
not, an optimizer with state, a schedule, a loss that is read.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from training_loop import WORDS, BlockPolicy, Model, grid_of, loss_of

from torch_pjrt.extend import counters

STEPS = 6


def fsdp2(model: Model) -> nn.Module:
    mesh = init_device_mesh("pjrt", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp1(**how: Any) -> Callable[[Model], nn.Module]:
    def wrapped(model: Model) -> nn.Module:
        return FullyShardedDataParallel(
            model, auto_wrap_policy=BlockPolicy, device_id=torch.device("pjrt"), **how
        )

    return wrapped


def ddp(model: Model) -> nn.Module:
    return DistributedDataParallel(model.to("pjrt"))


def hybrid(model: Model) -> nn.Module:
    """Shards in pairs of ranks, replicas across."""
    mesh = grid_of("pjrt", "replicate", "shard")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model: Model) -> nn.Module:
    """Products of a block in pairs of ranks, shards across."""
    mesh = grid_of("pjrt", "data", "model")
    for block in model.blocks:
        parallelize_module(
            block, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
        )
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


def ddp_and_tensor_parallel(model: Model) -> nn.Module:
    """Products of a block in pairs of ranks, replicas across."""
    mesh = grid_of("pjrt", "data", "model")
    model.to("pjrt")
    for block in model.blocks:
        parallelize_module(
            block, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
        )
    _pre_dp_module_transform(model)  # as PyTorch has it: DDP sees the parts
    return DistributedDataParallel(model, process_group=mesh["data"].get_group())


GRIDS: dict[str, Callable[[Model], nn.Module]] = {
    "FSDP2, hybrid": hybrid,
    "FSDP2 and tensor parallel": tensor_parallel,
    "DDP and tensor parallel": ddp_and_tensor_parallel,
}
WAYS: dict[str, Callable[[Model], nn.Module]] = {
    "FSDP2": fsdp2,
    "FSDP1": fsdp1(),
    "FSDP1, original parameters": fsdp1(use_orig_params=True),
    "DDP": ddp,
}


def steps(model: nn.Module, *, reads_every: int, clips: bool) -> list[tuple[int, int]]:
    """Of each step, how many programs were made and run; reading included."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    words = torch.randint(0, WORDS, (64, 5), generator=torch.Generator().manual_seed(1))
    rows = TensorDataset(words)
    loader = DataLoader(rows, 4, sampler=DistributedSampler(rows), drop_last=True)
    seen = []
    for step, (x,) in zip(range(STEPS), loader, strict=False):
        before = counters.programs_compiled, counters.programs_run
        optimizer.zero_grad()
        loss = loss_of(model, x.to("pjrt"))
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % reads_every == 0:
            loss.item()
        seen.append((counters.programs_compiled - before[0], counters.programs_run - before[1]))
    return seen


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    found = {}
    ways = GRIDS if "grids" in sys.argv else WAYS
    for i, (name, way) in enumerate(ways.items()):
        if ways is WAYS and name not in sys.argv:
            continue
        torch.manual_seed(0)
        model = way(Model(width=8 + 8 * i))
        found[name] = steps(model, reads_every=1 + i % 2, clips=name == "FSDP2")
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
