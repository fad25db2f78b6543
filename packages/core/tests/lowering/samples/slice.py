"""Samples for lowering/slice.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


x = normal(4, 6, 5)
DTYPES = (torch.bool, torch.int32, torch.bfloat16, torch.float64, torch.complex64)

SAMPLES: list[Sample] = [
    *[sample(aten.slice_scatter.default, x.to(d), normal(4, 2, 5).to(d), 1, 1, 3) for d in DTYPES],
    sample(aten.slice_scatter.default, x, normal(4, 2, 5), -2, -4, -1, 2),
    sample(aten.slice_scatter.default, x, normal(4, 3, 5), 1, 0, 2**63 - 1, 2),
    sample(aten.slice_scatter.default, x, normal(4, 2, 5), 1, 0, None, 3),
    sample(aten.slice_scatter.default, x, normal(4, 6, 5), 1),
    sample(aten.slice_scatter.default, x, normal(4, 0, 5), 1, 5, 2),
    sample(aten.slice_scatter.default, x, normal(2, 6, 5), 0, 2, 100),
    sample(aten.select_scatter.default, x, normal(4, 5), 1, 2),
    sample(aten.select_scatter.default, x, normal(4, 6), -1, -2),
    sample(aten.select_scatter.default, normal(4), torch.tensor(2.0), 0, 1),
    *[sample(aten.select_scatter.default, x.to(d), normal(6, 5).to(d), 0, 3) for d in DTYPES],
    sample(aten.diagonal_scatter.default, normal(4, 6), normal(4)),
    sample(aten.diagonal_scatter.default, normal(4, 6), normal(3), 3),
    sample(aten.diagonal_scatter.default, normal(4, 6), normal(3), -1),
    sample(aten.diagonal_scatter.default, normal(4, 6), normal(0), 6),
    sample(aten.diagonal_scatter.default, x, normal(6, 3), 1, -1, 0),
    sample(aten.diagonal_scatter.default, x, normal(6, 3), -2, -1, 0),
    sample(aten.diagonal_scatter.default, x, normal(5, 4), 1, 0, 1),
    *[sample(aten.diagonal_scatter.default, x.to(d), normal(4, 5).to(d), 0, 1, 2) for d in DTYPES],
    sample(aten.select_backward.default, normal(4, 5), [4, 6, 5], 1, -1),
    sample(aten.select_backward.default, normal(4, 6).bfloat16(), [4, 6, 5], -1, 0),
    sample(aten.select_backward.default, torch.tensor(2.0), [3], 0, 1),
    sample(aten.slice_backward.default, normal(4, 2, 5), [4, 6, 5], 1, 1, 3, 1),
    sample(aten.slice_backward.default, normal(4, 3, 5), [4, 6, 5], 1, 0, 2**63 - 1, 2),
    sample(aten.slice_backward.default, normal(4, 2, 5), [4, 6, 5], -2, -5, -1, 2),
    sample(aten.slice_backward.default, normal(4, 0, 5), [4, 6, 5], 1, 3, 3, 1),
    sample(aten.diagonal_backward.default, normal(4), [4, 6], 0, 0, 1),
    sample(aten.diagonal_backward.default, normal(6, 3), [4, 6, 5], 1, -1, 0),
    sample(aten.diagonal_backward.default, normal(6, 3).bfloat16(), [4, 6, 5], -2, -1, 0),
]
