"""Samples for lowering/join.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


whole = torch.arange(6).reshape(2, 3)
DTYPES = (torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.complex64)

SAMPLES: list[Sample] = [
    *[sample(aten.cat.default, [normal(2, 3, dtype=d), normal(4, 3, dtype=d)]) for d in DTYPES],
    sample(aten.cat.default, [normal(2, 3), normal(2, 1)], -1),
    sample(aten.cat.default, [normal(2, 3)], 1),
    sample(aten.cat.default, [whole, normal(2, 3, dtype=torch.float16)]),
    sample(aten.cat.default, [whole.to(torch.uint8), whole.to(torch.int8)]),
    sample(aten.cat.default, [torch.empty(0), whole, whole]),
    sample(aten.cat.default, [torch.empty(0, dtype=torch.float64), normal(2, 3)], 1),
    sample(aten.cat.default, [torch.empty(0), torch.empty(0)]),
    sample(aten.cat.default, [torch.empty(0, 3), normal(2, 3)]),
    sample(aten.cat.default, [torch.empty(2, 0), torch.empty(3, 0)]),
    sample(aten.stack.default, [normal(2, 3), normal(2, 3)]),
    sample(aten.stack.default, [normal(2, 3), normal(2, 3)], -1),
    sample(aten.stack.default, [normal(2, 3), whole], 1),
    sample(aten.stack.default, [torch.tensor(1.0), torch.tensor(2)]),
    sample(aten.stack.default, [torch.empty(0), torch.empty(0)], 1),
    sample(aten._stack.default, [normal(2, 3), normal(2, 3)], -2),
    sample(
        aten.block_diag.default,
        [normal(2, 3), whole, normal(2), torch.tensor(5.0), torch.empty(0, 2)],
    ),
]
