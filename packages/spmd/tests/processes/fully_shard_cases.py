"""`torch.distributed.fsdp.fully_shard` (FSDP2), as it is: each option that changes what is computed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from fully_shard_blocks import adamw, losses_and_weights, plain, sgd, sharded
from fully_shard_grids import (
    ddp_and_tensor_parallel,
    hybrid,
    hybrid_accumulated,
    on_another_dim,
    replicated,
    tensor_parallel,
)
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint
from training_loop import (
    Block,
    Case,
    Losses,
    Model,
    batch,
    loss_of,
    mesh_of,
    seeded,
    step_counted,
    sums_of,
    trained,
)

# How the model comes to the mesh.


def of_a_module_on_the_cpu(device: str) -> Losses:
    """`fully_shard` itself brings its parameters to the mesh's device."""
    model = sharded(seeded(), mesh_of(device))
    assert {p.device.type for p in model.parameters()} == {device}
    return losses_and_weights(model, device)


def of_a_module_on_the_meta_device(device: str) -> Losses:
    model = sharded(Model(device="meta"), mesh_of(device))
    assert all(p.is_meta for p in model.parameters())
    model.to_empty(device=device)
    for i, p in enumerate(model.parameters()):
        torch.manual_seed(i)
        whole = torch.randn(p.shape, device="cpu").to(device)
        p.detach().copy_(distribute_tensor(whole, p.device_mesh, p.placements))
    return losses_and_weights(model, device)


def reset_on_the_device(device: str) -> Losses:
    """`reset_parameters` of each module where it lies: of another generator, so only moments count."""
    model = sharded(Model(256, device="meta"), mesh_of(device))
    model.to_empty(device=device)
    torch.manual_seed(dist.get_rank())
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    found = []
    for p in model.parameters():
        whole = p.full_tensor().detach()
        found.append(float(whole.isfinite().all()))
        found.append(round(whole.std().item(), 1))
    return found


# Precision.


def in_precision(policy: MixedPrecisionPolicy, **how: Any) -> Case:
    def case(device: str) -> Losses:
        model = sharded(seeded().to(device), mesh_of(device), mp_policy=policy)
        seen: list[torch.dtype] = []
        model.blocks[0].register_forward_hook(lambda m, i, o: seen.append(o.dtype))
        losses = losses_and_weights(model, device, **how)
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
        assert set(seen) == {policy.output_dtype or policy.param_dtype}
        return losses

    return case


class Whole(nn.Module):
    """Weights and results are small whole numbers: right in bfloat16 whatever the order of adding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)
        for p in self.parameters():
            nn.init.constant_(p, 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def in_bfloat16(device: str) -> Losses:
    model: Any = Whole().to(device)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh_of(device), mp_policy=policy)
    x = torch.full((2, 4), 1.0 + dist.get_rank() % 2, device=device)
    y = model(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert {g.dtype for g in grads.values()} == {torch.float32}
    return [*y.detach().float().flatten().tolist(), *sums_of(grads)]


def scaled(device: str) -> Losses:
    """A gradient scaler, of which one step has infinite gradients."""
    model = sharded(seeded().to(device), mesh_of(device))
    optimizer = adamw(model.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
    found = []
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, batch(step, device))
        scale = float("inf") if step == 2 else 1.0
        scaler.scale(loss * scale).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        found += [loss.item(), scaler.get_scale()]
    return [*found, *sums_of(model.state_dict())]


# Where things are, and when they come.


def offloaded(device: str) -> Losses:
    """On the CPU there is nowhere to offload to: the same without."""
    policy = OffloadPolicy() if device == "cpu" else CPUOffloadPolicy()
    model = sharded(seeded(), mesh_of(device), offload_policy=policy)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    losses = trained(model, sgd(model.parameters()), device)
    assert {p.grad.device.type for p in model.parameters()} == {"cpu"}
    return [*losses, *_sums_of_parts(model)]


def _sums_of_parts(model: nn.Module) -> Losses:
    parts: Any = model.parameters()
    return [p.to_local().detach().abs().sum().item() for p in parts]


def prefetched(device: str) -> Losses:
    model = sharded(seeded(n_blocks=3).to(device), mesh_of(device))
    first, second, third = model.blocks
    model.set_modules_to_forward_prefetch([first, second])
    first.set_modules_to_forward_prefetch([second, third])
    third.set_modules_to_backward_prefetch([second, first])
    second.set_modules_to_backward_prefetch([first])
    return losses_and_weights(model, device)


def by_hand(device: str) -> Losses:
    """Gathered and let go by the user; not gathered again for backward; gathered asynchronously."""
    model = sharded(seeded().to(device), mesh_of(device), reshard_after_forward=False)
    model.set_unshard_in_backward(False)

    def loss(model: Any, words: torch.Tensor) -> torch.Tensor:
        handle = model.blocks[1].unshard(async_op=True)
        model.unshard()
        if handle is not None:
            handle.wait()
        return loss_of(model, words)

    losses = losses_and_weights(model, device, loss=loss)
    model.unshard()
    assert not isinstance(model.head.weight, DTensor)
    found = model.head.weight.detach().sum().item()
    model.reshard()
    assert isinstance(model.head.weight, DTensor)
    return [*losses, found]


def kept_after_backward(device: str) -> Losses:
    model = sharded(seeded().to(device), mesh_of(device))
    model.set_reshard_after_backward(False)
    model.set_reshard_after_forward(False)
    losses = trained(model, sgd(model.parameters()), device, before_step=model.reshard)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    return [*losses, *sums_of(model.state_dict())]


def by_another_method(device: str) -> Losses:
    class WithLoss(Model):
        def loss(self, words: torch.Tensor) -> torch.Tensor:
            return loss_of(self.forward, words)

    torch.manual_seed(0)
    model = sharded(WithLoss().to(device), mesh_of(device))
    register_fsdp_forward_method(model, "loss")
    return losses_and_weights(model, device, loss=lambda m, words: m.loss(words))


# Gradients.


def accumulated(how: str) -> Case:
    """Over two batches: synchronized at the last one only, or after each."""

    def case(device: str) -> Losses:
        model = sharded(seeded().to(device), mesh_of(device))
        optimizer, losses = sgd(model.parameters()), []
        for step in range(4):
            with step_counted():
                for i in range(2):
                    if how == "no sync":
                        model.set_requires_gradient_sync(i == 1)
                    elif how == "kept":
                        model.set_requires_gradient_sync(i == 1)
                        model.set_reshard_after_backward(i == 1)
                    model.set_is_last_backward(i == 1)
                    loss = loss_of(model, batch(2 * step + i, device))
                    loss.backward()
                    losses.append(loss.detach())
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)
        return [*[loss.item() for loss in losses], *sums_of(model.state_dict())]

    return case


def clipped(sizes: dict[str, Any]) -> Case:
    def case(device: str) -> Losses:
        model = sharded(seeded(**sizes).to(device), mesh_of(device))
        norms: list[Any] = []

        def clip() -> None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))

        losses = losses_and_weights(model, device, before_step=clip)
        return [*losses, *[norm.full_tensor().item() for norm in norms]]

    return case


def two_forwards(device: str) -> Losses:
    """Two forwards before one backward, and a forward without gradients between steps."""
    model = sharded(seeded().to(device), mesh_of(device))

    def loss(model: Any, words: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            shift = model(words).mean()
        return loss_of(model, words) + loss_of(model, words.flip(0)) * shift.abs()

    return losses_and_weights(model, device, loss=loss)


def unused(device: str) -> Losses:
    """Every other step leaves a block out."""
    model = seeded(n_blocks=3).to(device)
    n_calls = 0

    def loss(model: Any, words: torch.Tensor) -> torch.Tensor:
        nonlocal n_calls
        n_calls += 1
        x = model.embedding(words)
        for block in [model.blocks[0], *[model.blocks[1]] * (n_calls % 2), model.blocks[2]]:
            x = block(x)
        return nn.functional.cross_entropy(model.head(x).flatten(0, 1), words.flatten())

    for part in (model.embedding, *model.blocks, model.head):
        fully_shard(part, mesh=mesh_of(device))
    return losses_and_weights(model, device, sgd, loss=loss)


class CalledAhead(nn.Module):
    """The last block runs first, too, without gradients; and the others twice."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.model.embedding(words)
        with torch.no_grad():
            shift = self.model.blocks[-1](x)
        x = x + shift
        for block in [b for b in self.model.blocks for _ in range(2)]:
            x = block(x)
        return self.model.head(x)


def called_ahead(device: str) -> Losses:
    """The last block that backward gathers ahead is not used: its event is waited for at the end."""
    model: Any = CalledAhead(seeded(n_blocks=3).to(device))
    model.model.blocks[1].requires_grad_(False)
    for block in model.model.blocks:
        fully_shard(block, mesh=mesh_of(device))
    fully_shard(model, mesh=mesh_of(device))
    trains = [p for p in model.parameters() if p.requires_grad]
    return [*trained(model, adamw(trains), device), *sums_of(model.state_dict())]


def grouped(device: str) -> Losses:
    """Several modules that are gathered as one, not those of one class."""
    model: Any = seeded(n_blocks=3).to(device)
    mesh = mesh_of(device)
    fully_shard([model.blocks[0], model.blocks[1]], mesh=mesh)
    fully_shard([model.embedding, model.blocks[2]], mesh=mesh)
    return losses_and_weights(fully_shard(model, mesh=mesh), device)


def divided(device: str) -> Losses:
    model = sharded(seeded().to(device), mesh_of(device))
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(3.0)
            part.set_force_sum_reduction_for_comms(True)
    return losses_and_weights(model, device, sgd)


def frozen(device: str) -> Losses:
    model: Any = seeded(n_blocks=3).to(device)
    model.embedding.requires_grad_(False)
    model.blocks[1].requires_grad_(False)
    model.blocks[2].up.bias.requires_grad_(False)
    model = sharded(model, mesh_of(device))
    trains = [p for p in model.parameters() if p.requires_grad]
    return [*trained(model, adamw(trains), device), *sums_of(model.state_dict())]


def ignored(device: str) -> Losses:
    """Parameters that stay whole on each rank: their gradients are summed by hand."""
    model: Any = seeded().to(device)
    left = [model.head.weight, *model.blocks[0].norm.parameters()]  # all ranks reduce in this order
    model = sharded(model, mesh_of(device), ignored_params=set(left))
    assert not isinstance(model.head.weight, DTensor)

    def reduce() -> None:
        for p in left:
            dist.all_reduce(p.grad)
            assert p.grad is not None
            p.grad.div_(dist.get_world_size())

    sharded_ones = [p for p in model.parameters() if isinstance(p, DTensor)]
    optimizer = torch.optim.SGD(
        [{"params": sharded_ones}, {"params": sorted(left, key=torch.numel)}], lr=0.1
    )
    losses = trained(model, optimizer, device, before_step=reduce)
    return [*losses, *sums_of(model.state_dict())]


def by_hook(device: str) -> Losses:
    """Hooks on modules and gradients see whole activations and sharded gradients."""
    model = sharded(seeded().to(device), mesh_of(device))
    seen: list[torch.Tensor] = []
    model.blocks[0].register_full_backward_hook(lambda m, i, o: seen.append(o[0].detach().sum()))
    model.head.weight.register_post_accumulate_grad_hook(
        lambda p: seen.append(p.grad.to_local().detach().sum())
    )
    losses = losses_and_weights(model, device)
    return [*losses, *[s.item() for s in seen]]


# What goes with it.


def checkpointed(how: str) -> Case:
    def case(device: str) -> Losses:
        model = seeded().to(device)
        if how == "wrapper":
            apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
        else:
            for block in model.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return losses_and_weights(sharded(model, mesh_of(device)), device)

    return case


def compiled(device: str) -> Losses:
    """Blocks compiled on the device, and not on the CPU."""
    model = seeded().to(device)
    if device != "cpu":
        for block in model.blocks:
            block.compile(backend="pjrt")
    return losses_and_weights(sharded(model, mesh_of(device)), device)


FLOAT64 = MixedPrecisionPolicy(torch.float64, torch.float64)
UNEVEN = {"width": 5, "hidden": 7}

CASES: dict[str, Case] = {
    "FSDP2": plain(),
    "FSDP2, kept after forward": plain(reshard_after_forward=False),
    "FSDP2, kept after forward on two ranks": plain(reshard_after_forward=2),
    "FSDP2, uneven": plain(sizes=UNEVEN),
    "FSDP2, AdamW": plain(adamw),
    "FSDP2, AdamW without foreach": plain(partial(torch.optim.AdamW, lr=0.01, foreach=False)),
    "FSDP2, fused AdamW": plain(partial(torch.optim.AdamW, lr=0.01, fused=True)),
    "FSDP2, tied": plain(sizes={"is_tied": True}),
    "FSDP2, of a module on the CPU": of_a_module_on_the_cpu,
    "FSDP2, of a module on the meta device": of_a_module_on_the_meta_device,
    "FSDP2, reset on the device": reset_on_the_device,
    "FSDP2, float64": in_precision(FLOAT64),
    "FSDP2, float64, reduced in float32": in_precision(
        MixedPrecisionPolicy(torch.float64, torch.float32, cast_forward_inputs=True)
    ),
    "FSDP2, bfloat16": in_bfloat16,
    "FSDP2, scaled": scaled,
    "FSDP2, offloaded": offloaded,
    "FSDP2, prefetched": prefetched,
    "FSDP2, gathered by hand": by_hand,
    "FSDP2, kept after backward": kept_after_backward,
    "FSDP2, another method": by_another_method,
    "FSDP2, accumulated": accumulated("synced"),
    "FSDP2, accumulated without sync": accumulated("no sync"),
    "FSDP2, accumulated and kept": accumulated("kept"),
    "FSDP2, clipped": clipped({}),
    "FSDP2, clipped and uneven": clipped(UNEVEN),
    "FSDP2, two forwards": two_forwards,
    "FSDP2, unused": unused,
    "FSDP2, called ahead": called_ahead,
    "FSDP2, grouped": grouped,
    "FSDP2, divided": divided,
    "FSDP2, frozen": frozen,
    "FSDP2, ignored": ignored,
    "FSDP2, hooks": by_hook,
    "FSDP2, hybrid": hybrid,
    "FSDP2, hybrid, accumulated": hybrid_accumulated,
    "FSDP2, tensor parallel": tensor_parallel,
    "DDP, tensor parallel": ddp_and_tensor_parallel,
    "FSDP2, sharded on another dim": on_another_dim,
    "FSDP2, replicated": replicated,
    "FSDP2, checkpointed": checkpointed("wrapper"),
    "FSDP2, checkpointed by function": checkpointed("function"),
    "FSDP2, compiled": compiled,
}
