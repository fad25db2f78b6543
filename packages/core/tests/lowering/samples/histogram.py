"""Samples for lowering/histogram.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


x = normal(100)

SAMPLES: list[Sample] = [
    sample(aten.histc.default, x),
    sample(aten.histc.default, x.reshape(4, 25), 7, -1, 1),
    sample(aten.histc.default, x.double(), 7, -0.5, 2),
    sample(aten.histc.default, torch.tensor([0.0, 1, 2, 3, 4, torch.nan, torch.inf]), 4, 0, 4),
    sample(aten.histc.default, torch.ones(3), 3),
    sample(aten.histc.default, torch.tensor(2.0), 5),
    sample(aten.histc.default, torch.empty(0), 5),
    sample(aten.histc.default, torch.arange(10.0), 3, 2, 5),
]
