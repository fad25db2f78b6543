"""Samples for lowering/reparameterization.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
FITTED = "PyTorch's kernel is a fitted approximation, good to a thousandth"


def uniform(low: float, high: float, *shape: int, dtype: Any = torch.float64) -> torch.Tensor:
    return torch.rand(shape, generator=seed, dtype=torch.float64).mul(high - low).add(low).to(dtype)


def gamma(alpha: torch.Tensor) -> Sample:
    sample = torch._standard_gamma(alpha, seed)
    return Sample(
        aten._standard_gamma_grad.default, (alpha, sample), rtol=2e-3, atol=1e-4, why=FITTED
    )


def dirichlet(x: torch.Tensor, alpha: torch.Tensor, total: torch.Tensor) -> Sample:
    op = aten._dirichlet_grad.default
    return Sample(op, (x, alpha, total), rtol=5e-3, atol=1e-4, why=FITTED)


SAMPLES: list[Sample] = [
    gamma(uniform(0.2, 9, 40)),
    gamma(uniform(20, 200, 20)),
    gamma(uniform(0.2, 9, 3, 4, dtype=torch.float32)),
    gamma(uniform(0.2, 9, 0)),
    dirichlet(uniform(0.05, 0.95, 40), uniform(0.5, 3, 40), uniform(4, 6, 40)),
    dirichlet(uniform(0.001, 0.01, 20), uniform(0.5, 3, 20), uniform(4, 6, 20)),
    dirichlet(uniform(0.99, 0.999, 20), uniform(0.5, 3, 20), uniform(4, 6, 20)),
    dirichlet(uniform(0.3, 0.6, 20), uniform(20, 40, 20), uniform(70, 90, 20)),
    dirichlet(
        uniform(0.05, 0.95, 3, 4, dtype=torch.float32),
        uniform(0.5, 3, 3, 4, dtype=torch.float32),
        uniform(4, 6, 3, 4, dtype=torch.float32),
    ),
]
