"""Samples for lowering/fractional_pool.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
BF16, F64, NAN = torch.bfloat16, torch.float64, float("nan")


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def uniform(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=seed, dtype=torch.float64).to(dtype)


def with_nans(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(uniform(*x.shape) < 0.2, NAN)


two, three = aten.fractional_max_pool2d, aten.fractional_max_pool3d
two_backward, three_backward = (
    aten.fractional_max_pool2d_backward,
    aten.fractional_max_pool3d_backward,
)

#   forward  backward        input                              kernel     output     samples
ROWS: list[tuple[Any, Any, torch.Tensor, list[int], list[int], torch.Tensor]] = [
    (two, two_backward, normal(2, 3, 8, 9), [2, 3], [4, 3], uniform(2, 3, 2)),
    (two, two_backward, normal(2, 3, 8, 9).round(), [3, 3], [5, 6], uniform(2, 3, 2)),
    (two, two_backward, normal(3, 7, 7), [2, 2], [1, 3], uniform(1, 3, 2)),
    (two, two_backward, with_nans(normal(2, 3, 8, 9)), [2, 3], [4, 3], uniform(2, 3, 2)),
    (two, two_backward, normal(2, 3, 8, 9, dtype=F64), [2, 2], [5, 5], uniform(2, 3, 2, dtype=F64)),
    (three, three_backward, normal(2, 3, 6, 7, 8), [2, 2, 3], [3, 4, 2], uniform(2, 3, 3)),
    (three, three_backward, normal(3, 6, 7, 8), [2, 2, 3], [3, 1, 2], uniform(1, 3, 3)),
    # no windows
    (two, two_backward, normal(2, 3, 7, 7), [2, 2], [0, 1], uniform(2, 3, 2)),
    (three, three_backward, normal(2, 3, 6, 7, 8), [2, 2, 3], [1, 0, 1], uniform(2, 3, 3)),
    # more samples than planes
    (two, two_backward, normal(3, 7, 7), [2, 2], [1, 3], uniform(2, 3, 2)),
    (two, two_backward, normal(2, 3, 7, 7), [2, 2], [1, 3], uniform(3, 3, 2)),
    (three, three_backward, normal(3, 6, 7, 8), [2, 2, 3], [3, 1, 2], uniform(2, 3, 3)),
    (three, three_backward, normal(2, 3, 6, 7, 8), [2, 2, 3], [3, 1, 2], uniform(3, 3, 3)),
]  # fmt: skip


def pair(
    forward: Any, backward: Any, x: torch.Tensor, kernel: Any, output: Any, samples: torch.Tensor
) -> list[Sample]:
    y, indices = forward.default(x, kernel, output, samples)
    return [
        sample(forward.default, x, kernel, output, samples),
        sample(backward.default, torch.ones_like(y), x, kernel, output, indices),
    ]


SAMPLES: list[Sample] = [
    *[s for row in ROWS for s in pair(*row)],
    sample(
        two.default, normal(2, 3, 40, 40, dtype=BF16), [2, 2], [9, 9], uniform(2, 3, 2, dtype=BF16)
    ),
]
