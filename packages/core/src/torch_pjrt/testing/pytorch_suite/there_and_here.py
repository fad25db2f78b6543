"""The same call with copies of its arguments on the CPU and on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


def moved(tree: Any, device: str) -> Any:
    """Copies of all tensors in `tree` on `device`, which want gradients where those do."""

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            is_device = isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu")
            return torch.device(device) if is_device else x
        copied = x.detach().to(device, copy=True)
        return copied.requires_grad_(x.requires_grad)

    return tree_map(move, tree)


def not_contiguous(tree: Any) -> Any:
    """`tree` with every tensor of more than one element replaced by an equal one that has gaps."""

    def gapped(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.numel() < 2 or x.layout != torch.strided:
            return x
        wide = x.detach().unsqueeze(-1).expand(*x.shape, 2).clone()
        return wide[..., 0].requires_grad_(x.requires_grad)

    return tree_map(gapped, tree)


def gradients(outputs: Any, inputs: Any) -> list[torch.Tensor | None]:
    """Of the sum of the outputs' products with eighths, by every leaf of `inputs` that wants one."""
    wanting = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    made = [y for y in tree_leaves(outputs) if isinstance(y, torch.Tensor) and y.requires_grad]
    if not wanting or not made:
        return []
    return list(torch.autograd.grad(made, wanting, [eighths(y) for y in made], allow_unused=True))


def eighths(x: torch.Tensor) -> torch.Tensor:
    """Made-up values like `x`, which every floating dtype holds exactly."""
    values = (
        torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape).add(3).remainder(17).sub(8)
    )
    return (values / 8).to(x.dtype).to(x.device)


def seeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The call, with the generators in the same state each time."""
    torch.manual_seed(0)
    return function(*args, **kwargs)


def twin(module: torch.nn.Module, device: str) -> torch.nn.Module:
    """A copy on the device, with the tensors that are plain attributes."""
    copied = copy.deepcopy(module).to(device)
    for part in copied.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                setattr(part, name, value.to(device))
    return copied
