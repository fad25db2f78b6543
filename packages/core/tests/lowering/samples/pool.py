"""Samples for lowering/pool.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
BF16 = torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def whole(*shape: int) -> torch.Tensor:
    """Small numbers, so that there are ties."""
    return torch.randint(-2, 3, shape, generator=seed).float()


#   input             kernel     stride     padding    dilation   ceil_mode
MAXIMA = [
    (normal(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], [1, 1], False),
    (normal(2, 3, 8, 9), [2, 2], [2, 2], [0, 0], [1, 1], False),
    (normal(2, 3, 8, 9), [2, 3], [2, 1], [1, 0], [1, 2], True),
    (normal(2, 3, 7, 10), [3, 2], [3, 3], [1, 1], [2, 1], True),
    (normal(2, 3, 7, 10), [2, 2], [3, 4], [0, 0], [1, 1], True),
    (normal(3, 8, 9), [3, 3], [1, 1], [1, 1], [1, 1], False),
    (normal(1, 1, 30, 31), [12, 13], [9, 10], [6, 2], [1, 1], True),
    (whole(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], [1, 1], False),
    (normal(2, 3, 8, 9, dtype=BF16), [3, 3], [2, 2], [1, 1], [1, 1], False),
    (normal(2, 3, 8, 9, dtype=torch.float64), [3, 3], [2, 2], [1, 1], [1, 1], False),
    (normal(2, 2, 5, 6, 7), [2, 3, 2], [2, 1, 2], [1, 1, 0], [1, 1, 2], False),
    (normal(2, 5, 6, 7), [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], True),
]  # fmt: skip
two, three = aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default
two_backward = aten.max_pool2d_with_indices_backward.default
three_backward = aten.max_pool3d_with_indices_backward.default


def maximum(x: torch.Tensor, *how: object) -> list[Sample]:
    flat = len(how[0]) == 2  # type: ignore[arg-type]
    forward, backward = (two, two_backward) if flat else (three, three_backward)
    y, indices = forward(x, *how)
    grad = normal(*y.shape, dtype=y.dtype)
    return [sample(forward, x, *how), sample(backward, grad, x, *how, indices)]


#   input             kernel     stride     padding  ceil   include divisor
MEANS = [
    (normal(2, 3, 8, 9), [2, 2], [2, 2], [0, 0], False, True, None),
    (normal(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], False, True, None),
    (normal(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], False, False, None),
    (normal(2, 3, 8, 9), [3, 2], [2, 3], [1, 1], True, True, None),
    (normal(3, 8, 9), [3, 2], [2, 3], [1, 0], True, False, None),
    (normal(2, 3, 8, 9), [3, 3], [2, 2], [1, 1], False, True, 5),
    (normal(2, 3, 8, 9, dtype=BF16), [4, 4], [1, 1], [0, 0], False, True, None),
    (normal(2, 2, 5, 6, 7), [2, 3, 2], [2, 1, 2], [1, 1, 0], False, False, None),
    (normal(2, 5, 6, 7), [2, 3, 2], [2, 2, 2], [1, 1, 0], True, True, None),
]  # fmt: skip


def mean(x: torch.Tensor, *how: object) -> list[Sample]:
    flat = len(how[0]) == 2  # type: ignore[arg-type]
    forward = aten.avg_pool2d.default if flat else aten.avg_pool3d.default
    backward = aten.avg_pool2d_backward.default if flat else aten.avg_pool3d_backward.default
    y = forward(x, *how)
    grad = normal(*y.shape, dtype=y.dtype)
    atol = 1e-2 if y.dtype == BF16 else None
    why = "the CPU kernel adds up to 16 gradients in bfloat16"
    rtol = None if atol is None else 1.6e-2
    return [
        sample(forward, x, *how),
        Sample(backward, (grad, x, *how), atol=atol, rtol=rtol, why=why),
    ]


odd = whole(1, 1, 6, 6)
odd[0, 0, 0, :3] = torch.nan
lowest = torch.full((1, 1, 5, 5), -torch.inf)

SAMPLES: list[Sample] = [
    *[row for how in MAXIMA for row in maximum(*how)],
    *[row for how in MEANS for row in mean(*how)],
    sample(aten.avg_pool2d.default, torch.arange(36).reshape(1, 6, 6) - 18, [2], padding=1),
    sample(two, normal(1, 2, 6, 6), [3], ceil_mode=True),
    sample(two, odd, [3, 3], [1, 1], [1, 1]),
    sample(two, lowest, [3, 3], [1, 1], [1, 1], [2, 2]),
    sample(two, torch.arange(36).reshape(1, 6, 6) % 7, [3, 3], [2, 2], [1, 1]),
]
