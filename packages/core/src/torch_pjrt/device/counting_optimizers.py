"""Optimizers that count their steps on the host, by a tensor of the CPU, and have the option `capturable`.

With it they count on the device, so that each of their steps is the same program on the same tensors.
Without it a count on the device would be read for each parameter, in each step. There it comes to be where
a checkpoint is loaded with `map_location="pjrt"`, and NAdam's product with any; so it goes back to the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from torch_pjrt.session import session
from torch_pjrt.tensor.storage.buffer import is_pjrt

# What PyTorch's optimizers count by, in this state of a parameter; NAdam's product is one, too.
_COUNTS = ("step", "mu_product")
# ASGD counts on the parameters' device in any case.
_COUNT_ON_THE_HOST = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW"),
    *("NAdam", "RAdam", "RMSprop", "Rprop"),
)

# The states that were looked at, by `id`: the last one is there until another takes its place.
_looked_at: WeakKeyDictionary[Optimizer, int] = session.own(
    "states of optimizers that were looked at", WeakKeyDictionary()
)


@contextmanager
def counting_on_the_device(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Meanwhile, groups that have the option `capturable` keep no tensor on the host."""
    groups: list[dict[str, Any]] = []
    try:
        for optimizer in optimizers:
            begin_counting(optimizer, groups)
        yield
    finally:
        end_counting(groups)


def begin_counting(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """From now on it counts on the device; `groups` get those of it that do so until `end_counting`."""
    move_counts([optimizer])
    new = _countable(optimizer)
    groups += new  # before they change: an interrupt may come
    for group in new:
        group["capturable"] = True


def end_counting(groups: Iterable[dict[str, Any]]) -> None:
    """Their options are what they were. What they have counted stays on the device."""
    for group in groups:
        group["capturable"] = False


def can_count_on_the_device(optimizers: Iterable[Optimizer]) -> bool:
    """Whether one of them has the option, and it is off."""
    return any(_countable(optimizer) for optimizer in optimizers)


def _countable(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [
        group
        for group in optimizer.param_groups
        if group.get("capturable") is False
        and not group.get("fused")
        and all(is_pjrt(p) for p in group["params"])
    ]


def move_counts(optimizers: Iterable[Optimizer]) -> bool:
    """Move what the groups with that option count to the device; whether there was something to move."""
    found = [
        (state, key)
        for optimizer in optimizers
        for group in _countable(optimizer)
        for p in group["params"]
        for state in [optimizer.state.get(p, {})]
        for key, x in state.items()
        if _is_a_count(x)
    ]
    for state, key in found:
        state[key] = state[key].to("pjrt")
    return bool(found)


def count_on_the_host(optimizer: Optimizer) -> None:
    """Before the first step from a state that was loaded: move what it counts to the host.

    There PyTorch keeps it, unless the step needs it on the device (`capturable`, `fused`). Captured steps and
    those that Dynamo traces move it to the device later, and there it stays.
    """
    loaded = id(optimizer.state)
    if _looked_at.get(optimizer) == loaded:
        return
    _looked_at[optimizer] = loaded
    first: Any = next(iter(optimizer.state.values()), None)
    if first.__class__ is not dict or not any(_is_there(first.get(key)) for key in _COUNTS):
        return
    if not any(isinstance(optimizer, getattr(torch.optim, x, ())) for x in _COUNT_ON_THE_HOST):
        return
    for group in optimizer.param_groups:
        if not (group.get("capturable") or group.get("fused")):
            for state in [optimizer.state.get(p, {}) for p in group["params"]]:
                state.update({k: state[k].cpu() for k in _COUNTS if _is_there(state.get(k))})


def _is_there(x: Any) -> bool:
    return x.__class__ is torch.Tensor and is_pjrt(x)  # a DTensor stays with its mesh


def _is_a_count(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not x.dim() and not is_pjrt(x)


def hint_for(optimizers: Iterable[Optimizer]) -> str | None:
    """What to do about those of them that a captured step cannot have; None where there is nothing to say."""
    for optimizer in optimizers:
        name = type(optimizer).__name__
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        outside = f"or leave `{name}.step()` out of the captured step, and call it after that"
        if group.get("capturable") or group.get("fused"):
            continue
        if "fused" in group and any(_has_counts(optimizer)):
            return f"`{name}` counts its steps on the host: make it with fused=True, {outside}"
        if any(_has_counts(optimizer)):
            return (
                f"`{name}` keeps numbers on the host that change in each step: keep them in tensors on pjrt, "
                f"{outside}"
            )
    return None


def _has_counts(optimizer: Optimizer) -> Iterator[bool]:
    """Whether there is anything on the host that a step of the optimizer may change, one by one."""
    states = [state for state in optimizer.state.values() if isinstance(state, dict)]
    for x in [x for state in states for x in state.values()]:
        yield isinstance(x, (int, float)) or _is_a_count(x)
    for key in ("step", "steps", "k", "t"):
        yield any(isinstance(group.get(key), (int, float)) for group in optimizer.param_groups)
