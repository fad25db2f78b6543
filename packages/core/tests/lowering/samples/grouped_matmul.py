"""Samples for lowering/grouped_matmul.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def offsets(*ends: int) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The CPU leaves rows behind the last group as they were: every row is in one here.
ENDS = (offsets(2, 5, 16), offsets(0, 16, 16), offsets(0, 0, 16))
SHAPES = (((16, 8), (3, 8, 24)), ((3, 8, 8), (8, 16)), ((8, 16), (16, 8)))

SAMPLES: list[Sample] = [
    *[
        sample(aten._grouped_mm.default, normal(*a, dtype=dtype), normal(*b, dtype=dtype), ends)
        for dtype in DTYPES
        for a, b in SHAPES
        for ends in ENDS
    ],
    *[
        sample(aten._grouped_mm.default, normal(3, 8, 8, dtype=d), normal(3, 8, 16, dtype=d))
        for d in DTYPES
    ],
    sample(aten._grouped_mm.default, normal(0, 8), normal(3, 8, 24), offsets(0, 0, 0)),
    sample(
        aten._grouped_mm.default,
        normal(16, 8),
        normal(1, 8, 4),
        offsets(16),
        out_dtype=torch.float32,
    ),
]
