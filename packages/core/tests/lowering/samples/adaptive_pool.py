"""Samples for lowering/adaptive_pool.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


mean = {2: aten._adaptive_avg_pool2d.default, 3: aten._adaptive_avg_pool3d.default}
mean_backward = {
    2: aten._adaptive_avg_pool2d_backward.default,
    3: aten._adaptive_avg_pool3d_backward.default,
}
maximum = {2: aten.adaptive_max_pool2d.default, 3: aten.adaptive_max_pool3d.default}
maximum_backward = {
    2: aten.adaptive_max_pool2d_backward.default,
    3: aten.adaptive_max_pool3d_backward.default,
}
CALLS: list[tuple[torch.Tensor, list[int]]] = [
    (normal(2, 3, 8, 9), [1, 1]),
    (normal(2, 3, 8, 9), [4, 3]),
    (normal(2, 3, 8, 9), [3, 5]),
    (normal(2, 3, 4, 5), [7, 8]),
    (normal(3, 8, 9), [8, 2]),
    (normal(2, 3, 8, 9, dtype=torch.float64), [3, 9]),
    (normal(2, 2, 5, 6, 7), [2, 3, 7]),
    (normal(2, 5, 6, 7), [1, 1, 1]),
]


def rows(x: torch.Tensor, size: list[int]) -> list[Sample]:
    rank = len(size)
    grad = normal(*x.shape[:-rank], *size, dtype=x.dtype)
    _, indices = maximum[rank](x, size)
    return [
        sample(mean[rank], x, size),
        sample(mean_backward[rank], grad, x),
        sample(maximum[rank], x, size),
        sample(maximum_backward[rank], grad, x, indices),
    ]


def tied() -> Any:
    return torch.randint(0, 2, (1, 2, 7, 7), generator=seed).float()


SAMPLES: list[Sample] = [
    *[row for call in CALLS for row in rows(*call)],
    sample(mean[2], normal(2, 3, 8, 9, dtype=torch.bfloat16), [3, 5]),
    sample(maximum[2], normal(2, 3, 8, 9, dtype=torch.bfloat16), [3, 5]),
    sample(maximum[2], tied(), [3, 3]),
    sample(maximum[2], tied(), [1, 7]),
]
