"""`torch.distributed.checkpoint.state_dict`: states of models and optimizers, whole and sharded."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from fully_shard_blocks import sharded
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from training_loop import (
    BlockPolicy,
    Case,
    Losses,
    Model,
    grid_of,
    mesh_of,
    seeded,
    sums_of,
    trained,
)


def _flat(model: Model, device: str) -> nn.Module:
    """On the CPU PyTorch's FSDP1 ends the process where states go to the host: the other one stands in."""
    if device == "cpu":
        return sharded(model, mesh_of(device))
    return FullyShardedDataParallel(
        model,
        device_id=torch.device(device),
        use_orig_params=True,
        auto_wrap_policy=BlockPolicy,
    )


Ways = dict[str, Callable[[Model, str], nn.Module]]

WAYS: Ways = {
    "alone": lambda model, device: model.to(device),
    "DDP": lambda model, device: DistributedDataParallel(model.to(device)),
    "FSDP2": lambda model, device: sharded(model.to(device), mesh_of(device)),
    "hybrid": lambda model, device: sharded(model.to(device), grid_of(device, "r", "s")),
    "FSDP1": lambda model, device: _flat(model.to(device), device),
}


def made(way: str, device: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = WAYS[way](seeded(seed), device)
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def _numbers(state: Any) -> dict[str, torch.Tensor]:
    """The tensors of an optimizer's state, by name."""
    found: dict[str, torch.Tensor] = {}
    for name, of in state["state"].items():
        for kind, value in of.items():
            found[f"{name}/{kind}"] = (
                torch.as_tensor(value) if not isinstance(value, DTensor) else value
            )
    return found


def moved(way: str, to: str, **options: Any) -> Case:
    """Trained one way; its state goes on another way, to the losses that it would have had."""

    def case(device: str) -> Losses:
        how = StateDictOptions(**options)
        model, optimizer = made(way, device)
        losses = trained(model, optimizer, device, n=2, rank=0)
        states: Any = get_state_dict(model, optimizer, options=how)
        of_model, of_optimizer = states
        has_it = dist.get_rank() == 0 or not (how.cpu_offload and how.full_state_dict)
        places = {x.device.type for x in of_model.values()}
        assert places == (set() if not has_it else {"cpu"} if how.cpu_offload else {device})
        sums = [*sums_of(of_model), *sums_of(_numbers(of_optimizer))] if has_it else []
        of_model, of_optimizer = deepcopy((of_model, of_optimizer))  # some tensors are the model's
        went_on = trained(model, optimizer, device, n=2, rank=0)
        other, its_optimizer = made(to, device, seed=1)
        given = StateDictOptions(
            full_state_dict=how.full_state_dict,
            broadcast_from_rank0=how.full_state_dict and how.cpu_offload,
        )
        # Not `set_state_dict`, which takes a rank without a state for one that has an optimizer alone.
        set_model_state_dict(other, of_model, options=given)
        set_optimizer_state_dict(other, its_optimizer, of_optimizer, options=given)
        resumed = trained(other, its_optimizer, device, n=2, rank=0)
        assert max(abs(a - b) for a, b in zip(went_on, resumed, strict=True)) < 1e-5, (
            went_on,
            resumed,
        )
        return [*losses, *went_on, *sums]

    return case


def broadcast(device: str) -> Losses:
    """A meta model gets what rank 0 alone has."""
    whole = seeded(3).state_dict() if dist.get_rank() == 0 else {}
    model: Any = sharded(Model(device="meta"), mesh_of(device))
    model.to_empty(device=device)
    set_model_state_dict(
        model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    assert all(isinstance(p, DTensor) and p.device.type == device for p in model.parameters())
    return [
        *sums_of(model.state_dict()),
        *trained(model, torch.optim.SGD(model.parameters(), 0.1), device),
    ]


def not_strict(device: str) -> Losses:
    """Some names are missing, one is unknown."""
    model, _ = made("FSDP2", device)
    other, _ = made("FSDP2", device, seed=1)
    state: Any = dict(get_model_state_dict(model))
    del state["head.weight"]
    state["unknown"] = torch.zeros(2)
    said = set_model_state_dict(other, state, options=StateDictOptions(strict=False))
    assert said.missing_keys == ["head.weight"] and said.unexpected_keys == ["unknown"]
    try:
        set_model_state_dict(other, state, options=StateDictOptions(strict=True))
    except RuntimeError as error:
        assert "unknown" in str(error)
    else:
        raise AssertionError("a strict load took an unknown name")
    return sums_of(get_model_state_dict(other))


def of_a_part(device: str) -> Losses:
    """Of submodules alone; frozen parameters left out; the optimizer's state with flat names."""
    model, _ = made("FSDP2", device)
    model.embedding.weight.requires_grad_(False)  # pyright: ignore
    trains = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trains, 0.01)
    losses = trained(model, optimizer, device, n=1)
    blocks: Any = model.blocks
    part = get_model_state_dict(model, submodules={blocks[0]})
    rest = get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))
    assert "embedding.weight" not in rest and all("blocks.0" in name for name in part)
    flat: Any = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    set_optimizer_state_dict(
        model, optimizer, flat, options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    tensors = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}
    losses += trained(model, optimizer, device, n=1)
    return [*losses, *sums_of(part), *sums_of(rest), *sums_of(tensors)]


CASES: dict[str, Case] = {
    "states, FSDP2 to FSDP2, sharded": moved("FSDP2", "FSDP2"),
    "states, FSDP2 to FSDP2, sharded, on the host": moved("FSDP2", "FSDP2", cpu_offload=True),
    "states, FSDP2 to FSDP2, whole": moved("FSDP2", "FSDP2", full_state_dict=True),
    "states, FSDP2 to FSDP2, whole, on the host": moved(
        "FSDP2", "FSDP2", full_state_dict=True, cpu_offload=True
    ),
    "states, FSDP2 to alone": moved("FSDP2", "alone", full_state_dict=True),
    "states, alone to FSDP2": moved("alone", "FSDP2", full_state_dict=True),
    "states, DDP to FSDP2": moved("DDP", "FSDP2", full_state_dict=True),
    "states, FSDP2 to DDP": moved("FSDP2", "DDP", full_state_dict=True),
    "states, FSDP1 to FSDP2": moved("FSDP1", "FSDP2", full_state_dict=True, cpu_offload=True),
    "states, FSDP2 to FSDP1": moved("FSDP2", "FSDP1", full_state_dict=True),
    "states, hybrid to FSDP2": moved("hybrid", "FSDP2", full_state_dict=True),
    "states, hybrid to hybrid, sharded": moved("hybrid", "hybrid"),
    "states, from the first rank to the meta device": broadcast,
    "states, not strict": not_strict,
    "states, of a part": of_a_part,
}
