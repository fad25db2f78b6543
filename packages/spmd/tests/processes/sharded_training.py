"""DTensor, tensor parallel, FSDP, checkpoints and pipelines, as cases of `training_with_gloo.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from small_training import batch, network, steps
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def _mesh(device: str) -> Any:
    return init_device_mesh(device, (dist.get_world_size(),))


def _whole(model: nn.Module) -> list[float]:
    whole: Any = [p.full_tensor() for p in model.parameters()]  # pyright: ignore
    return [p.detach().abs().sum().item() for p in whole]


def dtensors(device: str) -> list[float]:
    mesh = _mesh(device)
    numbers, ones = torch.arange(24.0).reshape(8, 3).to(device), torch.ones(3, 4).to(device)
    product: Any = distribute_tensor(numbers, mesh, [Shard(0)]) @ distribute_tensor(
        ones, mesh, [Replicate()]
    )
    moved = product.redistribute(mesh, [Shard(1)])
    partial: Any = distribute_tensor(ones.t().contiguous(), mesh, [Shard(1)]) @ distribute_tensor(
        ones, mesh, [Shard(0)]
    )
    return [
        product.full_tensor().sum().item(),
        product.sum().full_tensor().item(),
        moved.to_local().sum().item(),
        partial.full_tensor().sum().item(),
    ]


def mesh_of_two_dims(device: str) -> list[float]:
    n = dist.get_world_size()
    mesh = init_device_mesh(device, (n // 2, 2), mesh_dim_names=("data", "model"))
    x: Any = distribute_tensor(
        torch.arange(64.0).reshape(8, 8).to(device), mesh, [Shard(0), Shard(1)]
    )
    moved = x.redistribute(placements=[Replicate(), Shard(0)])
    return [
        x.full_tensor().sum().item(),
        (x @ x).full_tensor().sum().item(),
        moved.to_local().sum().item(),
        mesh["model"].get_local_rank(),
    ]


def tensor_parallel(device: str) -> list[float]:
    model = network().to(device)
    plan: Any = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    parallelize_module(model, _mesh(device), plan)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)  # `third` is no DTensor
    return steps(model, optimizer, device, rank=0)


def fsdp2(device: str) -> list[float]:
    model = network().to(device)
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=_mesh(device))
    losses = steps(model, torch.optim.AdamW(model.parameters(), 0.01), device)
    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return [*losses, norm.full_tensor().item(), *_whole(model)]


def fsdp2_replicated(device: str) -> list[float]:
    n = dist.get_world_size()
    mesh = init_device_mesh(device, (n // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = network().to(device)
    fully_shard(model, mesh=mesh)
    return steps(model, torch.optim.AdamW(model.parameters(), 0.01), device)


def fsdp1(device: str) -> list[float]:
    """PyTorch has it for accelerators alone: on the CPU the other FSDP is the oracle."""
    if device == "cpu":
        return fsdp2(device)[:4]
    model = FullyShardedDataParallel(network().to(device), device_id=torch.device("pjrt:0"))
    return steps(model, torch.optim.AdamW(model.parameters(), 0.01), device)


def saved_and_loaded(device: str) -> list[float]:
    """Trained on, saved in between; another model goes on from what was saved, to the same losses."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network().to(device)
        fully_shard(model, mesh=_mesh(device))
        return model, torch.optim.AdamW(model.parameters(), 0.01)

    folder = _folder()
    model, optimizer = made()
    steps(model, optimizer, device)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
    went_on = steps(model, optimizer, device)
    model, optimizer = made()
    steps(model, optimizer, device, n=1)  # an optimizer has no state before
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    load(state, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],  # pyright: ignore[reportArgumentType]
    )
    resumed = steps(model, optimizer, device)
    assert resumed == went_on, (resumed, went_on)
    return resumed


def saved_in_the_background(device: str) -> list[float]:
    folder, model = _folder(), network().to(device)
    saving: Any = async_save({"model": model.state_dict()}, checkpoint_id=folder)
    saving.result()
    state = {"model": {k: torch.zeros_like(v) for k, v in model.state_dict().items()}}
    load(state, checkpoint_id=folder)
    return [v.abs().sum().item() for v in state["model"].values()]


def _folder() -> str:
    made: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made, 0, device=torch.device("cpu"))
    return made[0]


def pipeline(schedule: Any) -> Callable[[str], list[float]]:
    """Of two stages: ranks 0 and 1; the others do nothing."""

    def run(device: str) -> list[float]:
        rank, pair = dist.get_rank(), dist.new_group([0, 1])
        if rank > 1:
            return []
        whole = network()
        parts = [
            nn.Sequential(whole.first, nn.ReLU(), whole.second),
            nn.Sequential(nn.ReLU(), whole.third),
        ]
        part = parts[rank].to(device)
        stage = PipelineStage(part, rank, 2, torch.device(device), group=pair)  # pyright: ignore
        running = schedule(stage, 3, loss_fn=nn.functional.cross_entropy)
        x, y = batch(0, device, 0)
        results: list[float] = []
        for _ in range(2):
            part.zero_grad()
            losses: list[torch.Tensor] = []
            if rank == 0:
                running.step(x)
            else:
                running.step(target=y, losses=losses)
            results += [loss.item() for loss in losses]
            results += [p.grad.abs().sum().item() for p in part.parameters()]  # pyright: ignore
        return results

    return run


CASES: dict[str, Callable[[str], list[float]]] = {
    "DTensor": dtensors,
    "DTensor, mesh of two dims": mesh_of_two_dims,
    "tensor parallel": tensor_parallel,
    "FSDP2": fsdp2,
    "FSDP2, sharded and replicated": fsdp2_replicated,
    "FSDP1": fsdp1,
    "checkpoint": saved_and_loaded,
    "checkpoint, in the background": saved_in_the_background,
    "pipeline: GPipe": pipeline(ScheduleGPipe),
    "pipeline: 1F1B": pipeline(Schedule1F1B),
}
