"""`xm.optimizer_step`: gradients of all ranks averaged, then the optimizer's step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_xla import process_groups
from torch_xla.core.collectives import REDUCE_SUM, Groups, all_reduce
from torch_xla.steps import sync


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients that there are, in the optimizer's order. Its name is private, and libraries import
    it."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad for p in parameters if p.grad is not None]


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True
) -> None:
    """The mean of all ranks' gradients, in place; nothing in a run of one process."""
    if not process_groups.is_alone():
        count = len(groups[0]) if groups else process_groups.world_size()
        all_reduce(REDUCE_SUM, _fetch_gradients(optimizer), 1.0 / count, groups)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Groups = None,
    pin_layout: bool = True,
) -> Any:
    """`reduce_gradients`, `optimizer.step(**optimizer_args)`, whose result it returns; a sync if
    `barrier`."""
    reduce_gradients(optimizer, groups)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        sync()
    return loss
