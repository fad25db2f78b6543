"""`FullyShardedDataParallel` (FSDP1), as it is: strategies, policies, precision, its own state dicts."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import (
    always_wrap_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from training_loop import (
    Block,
    BlockPolicy,
    Case,
    Losses,
    Model,
    batch,
    grid_of,
    loss_of,
    seeded,
    step_counted,
    sums_of,
    trained,
)


def wrapped(model: nn.Module, device: str, *, is_offloaded: bool = False, **how: Any) -> FSDP:
    """Offloaded on the device alone: from the CPU to the CPU means nothing."""
    how.setdefault("auto_wrap_policy", BlockPolicy)
    if is_offloaded and device != "cpu":
        how["cpu_offload"] = CPUOffload(offload_params=True)
    made = FSDP(model, device_id=torch.device(device), **how)
    if is_offloaded:
        assert {p.device.type for p in made.parameters()} == {"cpu"}
    return made


def parameters_of(model: nn.Module, device: str, **how: Any) -> nn.Module:
    """The model where FSDP wants its parameters to be."""
    return model if how.get("is_offloaded") else model.to(device)


def weights(model: FSDP) -> Losses:
    with FSDP.summon_full_params(model):
        return [p.detach().abs().sum().item() for p in model.parameters()]


def losses_and_weights(model: FSDP, device: str, **how: Any) -> Losses:
    how.setdefault("n", 5)  # the first ones find out where a step begins
    losses = trained(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), device, **how)
    return [*losses, *weights(model)]


def plain(sizes: dict[str, Any] = {}, **how: Any) -> Case:  # noqa: B006  not written
    def case(device: str) -> Losses:
        model = wrapped(parameters_of(seeded(**sizes), device, **how), device, **how)
        return losses_and_weights(model, device)

    return case


def of_a_module_on_the_cpu(device: str) -> Losses:
    model = wrapped(seeded(), device)
    assert {p.device.type for p in model.parameters()} == {device}
    return losses_and_weights(model, device)


def of_a_module_on_the_meta_device(device: str) -> Losses:
    def make(module: nn.Module) -> None:
        module.to_empty(device=device, recurse=False)
        for p in module.parameters(recurse=False):
            torch.manual_seed(p.numel())
            # Small enough that training does not enlarge differences of rounding.
            p.detach().copy_(0.1 * torch.randn(p.shape, device="cpu"))

    model = wrapped(Model(device="meta"), device, param_init_fn=make)
    return losses_and_weights(model, device)


def from_the_first_rank(device: str) -> Losses:
    """The others begin elsewhere. PyTorch has it for accelerators alone: on the CPU all begin alike."""
    rank = 0 if device == "cpu" else dist.get_rank()
    model = wrapped(seeded(rank), device, sync_module_states=device != "cpu")
    return losses_and_weights(model, device)


FLOAT64 = MixedPrecision(torch.float64, torch.float64, torch.float64, cast_forward_inputs=True)


def scaled(**how: Any) -> Case:
    def case(device: str) -> Losses:
        model = wrapped(parameters_of(seeded(), device, **how), device, **how)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler: Any = ShardedGradScaler(device, init_scale=4.0, growth_interval=2)
        found = []
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step, device))
            scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            found += [loss.item(), scaler.get_scale()]
        return [*found, *weights(model)]

    return case


def clipped(**how: Any) -> Case:
    def case(device: str) -> Losses:
        model = wrapped(parameters_of(seeded(), device, **how), device, **how)
        norms: list[torch.Tensor] = []
        losses = losses_and_weights(
            model, device, before_step=lambda: norms.append(model.clip_grad_norm_(0.5))
        )
        return [*losses, *[norm.item() for norm in norms]]

    return case


def accumulated(**how: Any) -> Case:
    def case(device: str) -> Losses:
        model = wrapped(parameters_of(seeded(), device, **how), device, **how)
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
        for step in range(4):
            with step_counted():
                optimizer.zero_grad()
                with model.no_sync():
                    loss_of(model, batch(2 * step, device)).backward()
                loss = loss_of(model, batch(2 * step + 1, device))
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
        return [*[loss.item() for loss in losses], *weights(model)]

    return case


def frozen(**how: Any) -> Case:
    def case(device: str) -> Losses:
        model: Any = parameters_of(seeded(), device, **how)
        model.embedding.requires_grad_(False)
        model.blocks[0].requires_grad_(False)
        return losses_and_weights(wrapped(model, device, use_orig_params=True, **how), device)

    return case


def ignored(device: str) -> Losses:
    model = seeded().to(device)
    head = model.head
    whole = wrapped(model, device, ignored_modules=[head])

    def reduce() -> None:
        dist.all_reduce(head.weight.grad)

    losses = losses_and_weights(whole, device, before_step=reduce)
    return [*losses, head.weight.detach().sum().item()]


def summoned(device: str) -> Losses:
    """Whole parameters are read and written; gradients are there; on one rank and on the host.

    PyTorch ends the process where it is to offload from the CPU to the CPU.
    """
    model: Any = wrapped(seeded().to(device), device, use_orig_params=True)
    loss_of(model, batch(0, device)).backward()
    found = []
    with FSDP.summon_full_params(model, with_grads=True):
        for p in model.parameters():
            assert p.grad is not None
            found += [p.detach().sum().item(), p.grad.sum().item()]
            p.detach().mul_(2)
    with FSDP.summon_full_params(
        model, rank0_only=True, writeback=False, offload_to_cpu=device != "cpu"
    ):
        if dist.get_rank() == 0:
            assert {p.device.type for p in model.parameters()} == {"cpu"}
            found += [p.detach().sum().item() for p in model.parameters()]
            whole: Any = model.module
            whole.head.weight.detach().zero_()
    return [*found, loss_of(model, batch(1, device)).item()]


def states(kind: str, **how: Any) -> Case:
    """Trained, saved in between, loaded into another model that goes on to the same losses.

    Original parameters do not resume as they went on with PyTorch on the CPU: flat ones stand in there.
    """

    def case(device: str) -> Losses:
        def made() -> tuple[FSDP, torch.optim.Optimizer]:
            options = how if device != "cpu" else {}
            model = wrapped(parameters_of(seeded(), device, **options), device, **options)
            return model, torch.optim.AdamW(model.parameters(), 0.01)

        configs: tuple[Any, ...] = (
            (
                FullStateDictConfig(offload_to_cpu=True),
                FullOptimStateDictConfig(offload_to_cpu=True),
            )
            if kind == "FULL_STATE_DICT" and device != "cpu"  # see `summoned`
            else ()
        )
        model, optimizer = made()
        losses = trained(model, optimizer, device, n=2)
        other, its_optimizer = made()
        with (
            FSDP.state_dict_type(model, StateDictType[kind], *configs),
            FSDP.state_dict_type(other, StateDictType[kind], *configs),
        ):
            state = model.state_dict()
            of_optimizer = FSDP.optim_state_dict(model, optimizer)
            state, of_optimizer = deepcopy(
                (state, of_optimizer)
            )  # PyTorch takes some tensors as they are
            other.load_state_dict(state)
            its_optimizer.load_state_dict(
                FSDP.optim_state_dict_to_load(other, its_optimizer, of_optimizer)
            )
        went_on = [
            trained(*both, device, n=2) for both in ((model, optimizer), (other, its_optimizer))
        ]
        assert max(abs(a - b) for a, b in zip(*went_on, strict=True)) < 1e-5, went_on
        whole = sums_of(state) if kind == "FULL_STATE_DICT" else []
        return [*losses, *went_on[0], *whole]

    return case


def hybrid(strategy: str, **how: Any) -> Case:
    def case(device: str) -> Losses:
        model = wrapped(
            parameters_of(seeded(), device, **how),
            device,
            device_mesh=grid_of(device, "replicate", "shard"),
            sharding_strategy=ShardingStrategy[strategy],
            **how,
        )
        return losses_and_weights(model, device)

    return case


def checkpointed(**how: Any) -> Case:
    def case(device: str) -> Losses:
        model = wrapped(parameters_of(seeded(), device, **how), device, **how)
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
        return losses_and_weights(model, device)

    return case


_by_lambda = partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Linear))
_by_layer = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
_by_size = partial(size_based_auto_wrap_policy, min_num_params=100)

CASES: dict[str, Case] = {
    "FSDP1": plain(),
    "FSDP1, original parameters": plain(use_orig_params=True),
    "FSDP1, SHARD_GRAD_OP": plain(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
    "FSDP1, NO_SHARD": plain(sharding_strategy=ShardingStrategy.NO_SHARD),
    "FSDP1, NO_SHARD, original parameters": plain(
        sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True
    ),
    "FSDP1, HYBRID_SHARD": hybrid("HYBRID_SHARD"),
    "FSDP1, _HYBRID_SHARD_ZERO2": hybrid("_HYBRID_SHARD_ZERO2"),
    "FSDP1, wrapped by lambda": plain(auto_wrap_policy=_by_lambda),
    "FSDP1, wrapped by layer": plain(auto_wrap_policy=_by_layer),
    "FSDP1, wrapped by size": plain(auto_wrap_policy=_by_size),
    "FSDP1, wrapped always": plain(auto_wrap_policy=always_wrap_policy),
    "FSDP1, as a whole": plain(auto_wrap_policy=None),
    "FSDP1, uneven": plain({"width": 5, "hidden": 7}),
    "FSDP1, tied": plain({"is_tied": True}, use_orig_params=True),
    "FSDP1, float64": plain(mixed_precision=FLOAT64),
    "FSDP1, reduced in float64": plain(mixed_precision=MixedPrecision(reduce_dtype=torch.float64)),
    "FSDP1, scaled": scaled(),
    "FSDP1, of a module on the CPU": of_a_module_on_the_cpu,
    "FSDP1, of a module on the meta device": of_a_module_on_the_meta_device,
    "FSDP1, from the first rank": from_the_first_rank,
    "FSDP1, gathers not limited": plain(limit_all_gathers=False),
    "FSDP1, forward prefetch": plain(forward_prefetch=True),
    "FSDP1, no backward prefetch": plain(backward_prefetch=None),
    "FSDP1, late backward prefetch": plain(backward_prefetch=BackwardPrefetch.BACKWARD_POST),
    "FSDP1, clipped": clipped(),
    "FSDP1, clipped, original parameters": clipped(use_orig_params=True),
    "FSDP1, clipped, NO_SHARD": clipped(sharding_strategy=ShardingStrategy.NO_SHARD),
    "FSDP1, accumulated": accumulated(),
    "FSDP1, offloaded": plain(is_offloaded=True),
    "FSDP1, offloaded, original parameters": plain(is_offloaded=True, use_orig_params=True),
    "FSDP1, offloaded, SHARD_GRAD_OP": plain(
        is_offloaded=True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP
    ),
    "FSDP1, offloaded, SHARD_GRAD_OP, original parameters": plain(
        is_offloaded=True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True
    ),
    "FSDP1, offloaded, NO_SHARD": plain(
        is_offloaded=True, sharding_strategy=ShardingStrategy.NO_SHARD
    ),
    "FSDP1, offloaded, NO_SHARD, original parameters": plain(
        is_offloaded=True, sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True
    ),
    "FSDP1, offloaded, HYBRID_SHARD": hybrid("HYBRID_SHARD", is_offloaded=True),
    "FSDP1, offloaded, uneven": plain({"width": 5, "hidden": 7}, is_offloaded=True),
    "FSDP1, offloaded, tied": plain({"is_tied": True}, is_offloaded=True, use_orig_params=True),
    "FSDP1, offloaded, float64": plain(is_offloaded=True, mixed_precision=FLOAT64),
    "FSDP1, offloaded, scaled": scaled(is_offloaded=True),
    "FSDP1, offloaded, clipped": clipped(is_offloaded=True),
    "FSDP1, offloaded, clipped, original parameters": clipped(
        is_offloaded=True, use_orig_params=True
    ),
    "FSDP1, offloaded, accumulated": accumulated(is_offloaded=True),
    "FSDP1, offloaded, accumulated, original parameters": accumulated(
        is_offloaded=True, use_orig_params=True
    ),
    "FSDP1, offloaded, frozen": frozen(is_offloaded=True),
    "FSDP1, offloaded, checkpointed": checkpointed(is_offloaded=True),
    "FSDP1, offloaded, full states": states("FULL_STATE_DICT", is_offloaded=True),
    "FSDP1, offloaded, sharded states": states("SHARDED_STATE_DICT", is_offloaded=True),
    "FSDP1, frozen": frozen(),
    "FSDP1, ignored": ignored,
    "FSDP1, summoned": summoned,
    "FSDP1, full states": states("FULL_STATE_DICT"),
    "FSDP1, full states, original parameters": states("FULL_STATE_DICT", use_orig_params=True),
    "FSDP1, sharded states": states("SHARDED_STATE_DICT"),
    "FSDP1, sharded states, original parameters": states(
        "SHARDED_STATE_DICT", use_orig_params=True
    ),
    "FSDP1, local states": states("LOCAL_STATE_DICT"),
    "FSDP1, checkpointed": checkpointed(),
}
