"""Samples for lowering/margin_loss.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def one_right(x: torch.Tensor, target: torch.Tensor, *more: Any) -> list[Sample]:
    forward, backward = aten.multi_margin_loss.default, aten.multi_margin_loss_backward.default
    rows: list[Sample] = []
    for reduction in (0, 1, 2):
        loss = forward(x, target, *more, reduction)
        grad = normal(*loss.shape, dtype=x.dtype)
        rows.append(sample(forward, x, target, *more, reduction))
        rows.append(sample(backward, grad, x, target, *more, reduction))
    return rows


def several_right(x: torch.Tensor, target: torch.Tensor) -> list[Sample]:
    forward = aten.multilabel_margin_loss_forward.default
    backward = aten.multilabel_margin_loss_backward.default
    rows: list[Sample] = []
    for reduction in (0, 1, 2):
        loss, is_target = forward(x, target, reduction)
        grad = normal(*loss.shape, dtype=x.dtype)
        rows.append(sample(forward, x, target, reduction))
        rows.append(sample(backward, grad, x, target, reduction, is_target))
    return rows


classes = torch.tensor([0, 2, 1, 3, 2])
labels = torch.tensor([[1, 3, -1, 0], [-1, 0, 1, 2], [2, 2, 0, -1], [3, 2, 1, 0]])

SAMPLES: list[Sample] = [
    *one_right(normal(5, 4), classes, 1, 1, None),
    *one_right(normal(5, 4), classes, 2, 0.7, normal(4).abs()),
    *one_right(normal(5, 4, dtype=torch.float64), classes, 1, 1.5, None),
    *one_right(normal(4), classes[1], 2, 1, None),
    *one_right(normal(4), classes[1:2], 1, 1, None),
    *several_right(normal(4, 4), labels),
    *several_right(normal(4, 4, dtype=torch.float64), labels),
    *several_right(normal(4), labels[2]),
    *several_right(normal(), torch.tensor(0)),
    # The CPU leaves the mean and the sum of no samples uninitialised.
    sample(aten.multi_margin_loss.default, normal(0, 4), classes[:0], 1, 1, None, 0),
    sample(aten.multilabel_margin_loss_forward.default, normal(0, 4), labels[:0], 0),
]
