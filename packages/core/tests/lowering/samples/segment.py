"""Samples for lowering/segment.py."""

from __future__ import annotations

import math
from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def rows(data: torch.Tensor, **options: Any) -> list[Sample]:
    forward, backward = aten.segment_reduce.default, aten._segment_reduce_backward.default
    result: list[Sample] = []
    for reduce in ("sum", "mean", "max", "min", "prod", "amax", "amin"):
        for initial in (None, 0.5):
            call = options | {"initial": initial}
            output = forward(data, reduce, **call)
            grad = normal(*output.shape, dtype=data.dtype)
            result.append(sample(forward, data, reduce, **call))
            result.append(sample(backward, grad, output, data, reduce, **call))
    return result


X = normal(7, 3)
X[1, 0] = X[2, 0] = X[4, 1] = X[0, 2] = 0
X[5, 1] = math.nan
X[3, 1] = X[4, 1]
LENGTHS = torch.tensor([3, 0, 2, 2])

SAMPLES: list[Sample] = [
    *rows(X, lengths=LENGTHS),
    *rows(normal(7, dtype=torch.float64), lengths=LENGTHS.int()),
    *rows(X, offsets=torch.tensor([0, 3, 3, 5, 7])),
    *rows(normal(2, 5, 3), lengths=torch.tensor([[2, 0, 3], [1, 4, 0]]), axis=1),
]
