"""Samples for lowering/pool.py."""

from __future__ import annotations

import torch

from check import Sample, sample

aten = torch.ops.aten
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


odd = whole(1, 1, 6, 6)
odd[0, 0, 0, :3] = torch.nan
lowest = torch.full((1, 1, 5, 5), -torch.inf)

SAMPLES: list[Sample] = [
    *[row for how in MAXIMA for row in maximum(*how)],
    sample(two, normal(1, 2, 6, 6), [3], ceil_mode=True),
    sample(two, odd, [3, 3], [1, 1], [1, 1]),
    sample(two, lowest, [3, 3], [1, 1], [1, 1], [2, 2]),
    sample(two, torch.arange(36).reshape(1, 6, 6) % 7, [3, 3], [2, 2], [1, 1]),
]
