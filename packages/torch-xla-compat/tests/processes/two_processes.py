"""What two processes exchange by torch_xla's names, for `test_processes.py`; each checks its own results."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel,
    checkpoint_module,
    consolidate_sharded_model_checkpoints,
)
from torch_xla.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer


def same(found: torch.Tensor | None, wanted: list) -> None:
    assert found is not None
    assert found.detach().cpu().tolist() == wanted, (found, wanted)


def collectives(index: int, word: str) -> None:
    rank, size, device = xr.global_ordinal(), xr.world_size(), xm.xla_device()
    assert (index, size, word) == (rank, 2, "word")
    assert (xr.local_ordinal(), xr.process_count(), xr.host_index()) == (rank, 2, 0)
    assert xm.is_master_ordinal() == (rank == 0)
    x = torch.arange(4.0, device=device) + rank  # 0 1 2 3 and 1 2 3 4

    same(xm.all_reduce(xm.REDUCE_SUM, x, scale=0.5), [0.5, 1.5, 2.5, 3.5])
    same(x, [float(i + rank) for i in range(4)])  # a new tensor was made
    in_place = [x.clone(), x * 2]
    xm.all_reduce(xm.REDUCE_MAX, in_place)
    same(in_place[1], [2.0, 4.0, 6.0, 8.0])
    same(xm.all_reduce(xm.REDUCE_MIN, x), [0.0, 1.0, 2.0, 3.0])
    same(xm.all_reduce(xm.REDUCE_MUL, x), [0.0, 2.0, 6.0, 12.0])
    same(xm.all_reduce(xm.REDUCE_SUM, x, groups=[[0], [1]]), x.tolist())
    same(xm.all_gather(x.view(2, 2), dim=1), [[0, 1, 1, 2], [2, 3, 3, 4]])
    into = torch.empty(8, device=device)
    assert xm.all_gather(x, output=into) is into
    same(into, [0, 1, 2, 3, 1, 2, 3, 4])
    same(xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, size), [[1, 3], [5, 7]][rank])
    same(xm.all_to_all(x.view(2, 2), 0, 1, size), [[[0, 1, 1, 2]], [[2, 3, 3, 4]]][rank])
    same(xm.collective_permute(x, [[0, 1], [1, 0]]), [i + 1.0 - rank for i in range(4)])
    same(xm.collective_permute(x, [[0, 1]]), [[0, 0, 0, 0], [0, 1, 2, 3]][rank])
    copied = x.clone()
    xm.collective_broadcast([copied], root_ordinal=1)
    same(copied, [1, 2, 3, 4])
    if rank == 0:
        xm.send(x, 1)
    else:
        same(xm.recv(torch.empty(4, device=device), 0), [0, 1, 2, 3])

    weight = torch.ones(4, device=device, requires_grad=True)
    (xf.all_gather(weight * (rank + 1)).sum() * (rank + 1)).backward()
    assert weight.grad is not None
    same(weight.grad, [3.0 * (rank + 1)] * 4)
    weight.grad = None
    (xf.all_reduce(xm.REDUCE_SUM, weight * (rank + 1)).sum() * (rank + 1)).backward()
    same(weight.grad, [3.0 * (rank + 1)] * 4)

    assert xm.mesh_reduce("sum", rank + 1, sum) == 3
    assert xm.rendezvous("tag", str(rank).encode()) == [b"0", b"1"]


def training(index: int) -> None:
    """Gradients are averaged, so both ranks have the parameters of one process that saw all rows."""
    rank, device = xr.global_ordinal(), torch_xla.device()
    torch.manual_seed(rank)  # other weights on each rank, until the first one's are taken
    model = torch.nn.Linear(4, 2).to(device)
    xm.broadcast_master_param(model)
    torch.manual_seed(0)
    alone = torch.nn.Linear(4, 2)
    data = torch.arange(16.0).view(4, 4) / 16
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer_alone = torch.optim.SGD(alone.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(data[rank::2].to(device)).square().mean().backward()
        xm.optimizer_step(optimizer, barrier=True)
        optimizer_alone.zero_grad()
        alone(data).square().mean().backward()
        optimizer_alone.step()
    torch.testing.assert_close(
        model.weight.detach().cpu(), alone.weight.detach(), atol=1e-6, rtol=1e-5
    )

    torch.manual_seed(0)
    sharded = XlaFullyShardedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(sharded.parameters(), 0.1)
    sharded(data[rank::2].to(device)).square().mean().backward()
    optimizer.step()
    torch.manual_seed(0)
    alone = torch.nn.Linear(4, 2)
    optimizer_alone = torch.optim.SGD(alone.parameters(), 0.1)
    alone(data).square().mean().backward()
    optimizer_alone.step()
    torch.testing.assert_close(
        sharded(data.to(device)).detach().cpu(), alone(data).detach(), atol=1e-6, rtol=1e-5
    )

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to(device)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, grad_clipping=False)
    model(data[rank::2].to(device)).square().mean().backward()
    zero.step()
    torch.testing.assert_close(
        model.weight.detach().cpu(), alone.weight.detach(), atol=1e-6, rtol=1e-5
    )


def sharded_checkpoint(index: int, folder: str) -> None:
    """What Transformers' Trainer does to save a model that it trains by FSDP of torch_xla."""
    rank, wrapped = xr.global_ordinal(), []

    def wrap(module: torch.nn.Module, **options: Any) -> torch.nn.Module:
        wrapped.append(module)
        return XlaFullyShardedDataParallel(checkpoint_module(module), **options)

    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    wanted = {name: value.clone() for name, value in plain.state_dict().items()}
    model = XlaFullyShardedDataParallel(
        plain,
        auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=1),
        auto_wrapper_callable=wrap,
        compute_dtype=torch.float32,
    )
    assert len(wrapped) == 2
    model(torch.ones(1, 4, device="xla")).sum().backward()

    checkpoint = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
    xm.save(checkpoint, f"{folder}/rank{rank}-of-2.bin", master_only=False)
    xm.rendezvous("saved")
    whole, path = consolidate_sharded_model_checkpoints(
        f"{folder}/", "rank*-of-*.bin", save_path=f"{folder}/whole{rank}.pth"
    )

    assert path == f"{folder}/whole{rank}.pth"
    names = {name.replace("_checkpoint_wrapped_module.", ""): v for name, v in whole.items()}
    assert names.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(names[name], value)
    assert isinstance(model.module.module, torch.nn.Sequential)
    assert isinstance(model.module, torch.nn.Sequential) and len(model.module) == 3


def all_three(index: int, word: str, folder: str) -> None:
    """One after another in the same processes, which take longer to start than all of them."""
    collectives(index, word)
    training(index)
    sharded_checkpoint(index, folder)
    dist.destroy_process_group()


def data_parallel(index: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).to(xm.xla_device()))
    rows = torch.full((2, 4), float(dist.get_rank() + 1), device="xla")
    model(rows).sum().backward()
    assert dist.get_backend() == "xla"
    same(model.module.weight.grad, [[3.0] * 4] * 2)  # the mean of 2 and 4
    dist.destroy_process_group()


def failing(index: int) -> None:
    if index == 1:
        raise ValueError("rank 1 cannot")
