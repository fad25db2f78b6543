"""`gradient_accumulation`: several small batches before a step of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: nn.Module,
    *carried_tensors: torch.Tensor,
) -> Any:
    """Call `train_step` for each element along dim 0 of the tensors, with backward; gradients add up.

    train_step  of the elements and the carried tensors; gives the loss, or the loss and the tensors
                carried on.

    Returns the sum of the losses; with carried tensors `(sum, *carried)`. Each loss is divided by their
    number
    before its backward, so that gradients are of the mean.
    """
    count = len(iterable_tensors[0])
    total: Any = 0.0
    for i in range(count):
        result = train_step(*(tensor[i] for tensor in iterable_tensors), *carried_tensors)
        loss, *carried = result if isinstance(result, tuple) else (result,)
        carried_tensors = tuple(carried) or carried_tensors
        loss = loss / count
        loss.backward()
        total = total + loss.detach()
    return (total, *carried_tensors) if carried_tensors else total
