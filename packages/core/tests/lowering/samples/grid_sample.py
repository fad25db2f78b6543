"""Samples for lowering/grid_sample.py."""

from __future__ import annotations

import itertools

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def points(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Some far beyond the ends, some at them."""
    grid = normal(*shape, dtype=dtype) * 1.6
    grid.view(-1)[::7] = 1
    grid.view(-1)[3::11] = -1
    return grid


def rows(x: torch.Tensor, grid: torch.Tensor, modes: tuple[int, ...]) -> list[Sample]:
    if x.ndim == 4:
        forward, backward = aten.grid_sampler_2d.default, aten.grid_sampler_2d_backward.default
    else:
        forward, backward = aten.grid_sampler_3d.default, aten.grid_sampler_3d_backward.default
    result: list[Sample] = []
    for mode, padding, align in itertools.product(modes, (0, 1, 2), (False, True)):
        grad = normal(*x.shape[:2], *grid.shape[1:-1], dtype=x.dtype)
        result.append(sample(forward, x, grid, mode, padding, align))
        result.append(sample(backward, grad, x, grid, mode, padding, align, [True, True]))
    return result


X, GRID = normal(2, 3, 5, 4), points(2, 6, 3, 2)
BACKWARD = aten.grid_sampler_2d_backward.default

SAMPLES: list[Sample] = [
    *rows(X, GRID, (0, 1, 2)),
    *rows(X.double(), GRID.double(), (0, 2)),
    *rows(normal(2, 2, 3, 4, 5), points(2, 2, 3, 4, 3), (0, 1)),
    *rows(normal(1, 2, 1, 1), points(1, 3, 3, 2), (0, 1, 2)),
    sample(aten.grid_sampler_2d.default, X, GRID[:, :0], 0, 0, False),
    sample(aten.grid_sampler_2d.default, X[:0], GRID[:0], 0, 0, False),
    sample(BACKWARD, normal(2, 3, 6, 3), X, GRID, 0, 0, False, [False, True]),
]
