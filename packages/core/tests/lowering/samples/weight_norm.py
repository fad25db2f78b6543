"""Samples for lowering/weight_norm.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=seed).to(dtype)


def layer(*shape: int, dim: int, dtype: torch.dtype = torch.float32) -> Sample:
    v, grad = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    g = normal(*(n if d == dim % len(shape) else 1 for d, n in enumerate(shape)), dtype=dtype)
    _, norms = aten._weight_norm_interface.default(v, g, dim)
    return sample(aten._weight_norm_interface_backward.default, grad, v, g, norms, dim)


SAMPLES: list[Sample] = [
    layer(3, 4, dim=0),
    layer(3, 4, dim=1),
    layer(3, 2, 2, dim=0),
    layer(3, 2, 2, dim=2),
    layer(5, dim=0),
    layer(3, 4, dim=0, dtype=torch.float64),
    layer(3, 4, dim=0, dtype=torch.bfloat16),
]
