"""Samples for lowering/loss.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
BF16 = torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def chance(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=seed, dtype=torch.float64).to(dtype)


def nll(x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int) -> list[Sample]:
    if x.ndim == 4:
        forward, backward = aten.nll_loss2d_forward.default, aten.nll_loss2d_backward.default
    else:
        forward, backward = aten.nll_loss_forward.default, aten.nll_loss_backward.default
    ignored = 1
    loss, total = forward(x, target, weight, reduction, ignored)
    grad = normal(*loss.shape, dtype=loss.dtype)
    return [
        sample(forward, x, target, weight, reduction, ignored),
        sample(backward, grad, x, target, weight, reduction, ignored, total),
    ]


classes = torch.tensor([0, 2, 1, 3, 2])
pixels = torch.randint(0, 4, (2, 3, 5), generator=seed)

NLL = [
    row
    for reduction in (0, 1, 2)
    for x, target, weight in [
        (normal(5, 4), classes, None),
        (normal(5, 4), classes, chance(4)),
        (normal(4), classes[1], None),
        (normal(2, 4, 3, 5), pixels, None),
        (normal(2, 4, 3, 5), pixels, chance(4)),
        (-chance(5, 4, dtype=BF16), classes, None),
        (normal(5, 4, dtype=torch.float64), classes, None),
    ]
    for row in nll(x, target, weight, reduction)
] + [
    sample(aten.nll_loss_forward.default, normal(2, 4), torch.tensor([-100, -100]), None, 1, -100),
    sample(aten.nll_loss_forward.default, normal(0, 4), classes[:0], None, 1, -100),
    sample(
        aten.nll_loss_backward.default,
        normal(), normal(3, 4), torch.tensor([-100, 2, -100]), chance(4), 1, -100,
        torch.tensor(0.3),
    ),
]  # fmt: skip


def elementwise(forward: Any, backward: Any, *more: float) -> list[Sample]:
    x, y = normal(4, 5), normal(4, 5)
    rows: list[Sample] = []
    for reduction in (0, 1, 2):
        grad = normal(4, 5) if reduction == 0 else normal()
        rows.append(sample(forward, x, y, reduction, *more))
        rows.append(sample(backward, grad, x, y, reduction, *more))
    rows.append(sample(forward, normal(), normal(), 1, *more))
    rows.append(sample(forward, normal(0, 3), normal(0, 3), 1, *more))
    rows.append(sample(forward, normal(8, dtype=BF16), normal(8, dtype=BF16), 1, *more))
    return rows


def binary(dtype: torch.dtype, weight: Any) -> list[Sample]:
    forward, backward = (
        aten.binary_cross_entropy.default,
        aten.binary_cross_entropy_backward.default,
    )
    x, y = chance(4, 5, dtype=dtype), chance(4, 5, dtype=dtype)
    return [
        row
        for reduction in (0, 1, 2)
        for row in (
            sample(forward, x, y, weight, reduction),
            sample(
                backward,
                normal(*((4, 5) if reduction == 0 else ()), dtype=dtype),
                x,
                y,
                weight,
                reduction,
            ),
        )
    ]


sure = torch.tensor([0.0, 1.0, 0.0, 1.0])
mse, mse_backward = aten.mse_loss.default, aten.mse_loss_backward.default
smooth, smooth_backward = aten.smooth_l1_loss.default, aten.smooth_l1_loss_backward.default
huber, huber_backward = aten.huber_loss.default, aten.huber_loss_backward.default
logits = aten.binary_cross_entropy_with_logits.default

SAMPLES: list[Sample] = [
    *NLL,
    *elementwise(mse, mse_backward),
    sample(mse, normal(4, dtype=BF16), normal(4)),
    *elementwise(smooth, smooth_backward, 1.0),
    *elementwise(smooth, smooth_backward, 0.3),
    sample(smooth, normal(4), normal(4), 1, 0.0),
    sample(smooth_backward, normal(4), normal(4), normal(4), 0, 0.0),
    *elementwise(huber, huber_backward, 0.7),
    *elementwise(aten.soft_margin_loss.default, aten.soft_margin_loss_backward.default),
    *binary(torch.float32, None),
    *binary(torch.float32, chance(4, 5)),
    *binary(torch.float64, chance(5)),
    sample(aten.binary_cross_entropy.default, sure, sure.flip(0), None, 0),
    sample(aten.binary_cross_entropy_backward.default, sure + 1, sure, chance(4), None, 0),
    *[sample(logits, normal(4, 5) * 9, chance(4, 5), None, None, r) for r in (0, 1, 2)],
    sample(logits, normal(4, 5), chance(4, 5), chance(5), chance(5), 1),
    sample(logits, torch.tensor([torch.inf, -torch.inf, 200.0]), chance(3), None, None, 0),
    sample(logits, normal(4, dtype=BF16), chance(4, dtype=BF16)),
]
