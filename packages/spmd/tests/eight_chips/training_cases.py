"""Ways to train that work on one chip, and what all cases are made of; see `cases.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_pjrt

Put = Callable[[torch.Tensor], torch.Tensor]
Case = Callable[[Put], Any]


def host(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole_numbers(*shape: int, below: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def network(put: Put, seed: int = 0) -> nn.Module:
    """Two layers, whose weights and biases `put` has placed."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    for i, p in enumerate(model.parameters()):
        p.data = host(*p.shape, seed=seed + i) / 4
    for module in model:
        for name, p in list(module.named_parameters()):
            setattr(module, name, nn.Parameter(put(p.detach())))
    return model


def loss_of(model: nn.Module, put: Put, seed: int = 9) -> torch.Tensor:
    return (model(put(host(16, 8, seed=seed))) - put(host(16, 8, seed=seed + 1))).square().mean()


# --- training


def trained_by(make: Callable[[Any], torch.optim.Optimizer]) -> Case:
    def case(put: Put) -> Any:
        model = network(put)
        optimizer = make(model.parameters())
        losses = []
        for step in range(3):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, put, 10 * step)
                loss.backward()
                return loss

            losses.append(optimizer.step(cast("Any", closure)))
        return losses, list(model.parameters()), optimizer.state_dict()["state"]

    return case


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adadelta":        torch.optim.Adadelta,
    "Adafactor":       torch.optim.Adafactor,
    "Adagrad":         torch.optim.Adagrad,
    "Adagrad fused":   lambda p: torch.optim.Adagrad(p, fused=True),
    "Adam":            torch.optim.Adam,
    "Adam amsgrad":    lambda p: torch.optim.Adam(p, amsgrad=True, foreach=True),
    "Adam capturable": lambda p: torch.optim.Adam(p, capturable=True),
    "Adam fused":      lambda p: torch.optim.Adam(p, fused=True),
    "Adam loop":       lambda p: torch.optim.Adam(p, foreach=False),
    "Adamax":          torch.optim.Adamax,
    "AdamW":           torch.optim.AdamW,
    "AdamW fused":     lambda p: torch.optim.AdamW(p, fused=True),
    "ASGD":            torch.optim.ASGD,
    "LBFGS":           lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "NAdam":           torch.optim.NAdam,
    "RAdam":           torch.optim.RAdam,
    "RMSprop":         lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop":           torch.optim.Rprop,
    "SGD":             lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD fused":       lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}  # fmt: skip


def scaled_gradients(put: Put) -> Any:
    """A step that is taken, one that is skipped since a gradient is infinite, and one after it."""
    model = network(put)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("pjrt", init_scale=1024.0, growth_interval=2)
    seen = []
    for factor in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        with torch.autocast("pjrt", torch.bfloat16):
            loss = loss_of(model, put)
        scaler.scale(loss * factor).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        seen.append(scaler.get_scale())
    return seen, list(model.parameters())


def clipped(put: Put) -> Any:
    model = network(put)
    loss_of(model, put).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    more = nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type=float("inf"), foreach=False)
    nn.utils.clip_grad_value_(model.parameters(), 0.001)
    return norm, more, [p.grad for p in model.parameters()]


def checkpoints(put: Put) -> Any:
    """One within another, with dropout, whose numbers are drawn again in backward."""
    model = network(put)
    torch.manual_seed(5)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(model(x), 0.5)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(inner, x, use_reentrant=False) + x

    x = put(host(16, 8)).requires_grad_()
    checkpoint(outer, x, use_reentrant=False).square().sum().backward()
    return x.grad, [p.grad for p in model.parameters()]


def accumulated(put: Put) -> Any:
    model = network(put)
    for seed in range(3):
        loss_of(model, put, seed).backward()
        torch_pjrt.sync()
    return [p.grad for p in model.parameters()]


def second_derivatives(put: Put) -> Any:
    x = put(host(16, 8)).requires_grad_()
    (g,) = torch.autograd.grad((x.tanh() * x).sum(), x, create_graph=True)
    return torch.autograd.grad(g.square().sum(), x)


def averaged(put: Put) -> Any:
    model = network(put)
    ema = torch.optim.swa_utils.AveragedModel(model)
    for step in range(2):
        loss_of(model, put, step).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * cast("torch.Tensor", p.grad))
        ema.update_parameters(model)
    return list(ema.module.parameters())


def normalized(put: Put) -> Any:
    norm = nn.BatchNorm1d(8).to("pjrt")
    out = [norm(put(host(16, 8, seed=i))) for i in range(2)]
    norm.eval()
    return out, norm(put(host(16, 8))), dict(norm.named_buffers())
