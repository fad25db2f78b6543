"""Samples of `lowering/scan.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

generator = torch.Generator().manual_seed(0)

X = torch.randn(3, 4, 5, generator=generator)
INTS = torch.randint(-5, 5, (3, 6), generator=generator)
TIES = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [2.0, math.nan, 1.0, math.nan, 5.0]])
INPUTS = [X, X.double(), X.bfloat16(), X.half(), INTS, INTS.int(), INTS.to(torch.uint8), INTS > 0]
EMPTY = torch.zeros(0, 3)
ANGLES = torch.complex(X[0], 20 * X[1])  # beyond the branch of the logarithm

SAMPLES: list[Sample] = [
    *(
        sample(op, x, dim)
        for op in (aten.cumsum.default, aten.cumprod.default)
        for x in INPUTS
        for dim in (0, -1)
    ),
    *(
        sample(op, x, 0)
        for op in (aten.cumsum.default, aten.cumprod.default)
        for x in (EMPTY, torch.tensor(3))
    ),
    sample(aten.cumsum.default, torch.tensor([1 + 2j, 3 - 1j]), 0),
    sample(aten.cumsum.default, X, 1, dtype=torch.float64),
    sample(aten.cumsum.default, INTS, 1, dtype=torch.float32),
    sample(aten.cumsum.default, INTS, 1, dtype=torch.int32),
    sample(aten.cumprod.default, INTS, 1, dtype=torch.float32),
    sample(aten.cumsum.default, torch.ones(3000, dtype=torch.bfloat16), 0),
    *(
        sample(op, x, dim)
        for op in (aten.cummax.default, aten.cummin.default)
        for x in [*INPUTS, TIES, -TIES]
        for dim in (0, -1)
    ),
    *(
        sample(op, x, 0)
        for op in (aten.cummax.default, aten.cummin.default)
        for x in (EMPTY, torch.tensor(3.0))
    ),
    *(
        sample(aten.logcumsumexp.default, x, dim)
        for x in (X, X.double(), X.bfloat16())
        for dim in (0, -1)
    ),
    sample(aten.logcumsumexp.default, torch.tensor([-math.inf, -math.inf, 0.0, 1e4]), 0),
    sample(aten.logcumsumexp.default, torch.tensor(1.0), 0),
    sample(aten._logcumsumexp.default, X, 1),
    *(sample(aten.logcumsumexp.default, ANGLES, dim) for dim in (0, -1)),
    sample(aten.logcumsumexp.default, torch.tensor(1 + 9j), 0),
    sample(
        aten.logcumsumexp.default,
        torch.tensor([-math.inf + 0j, -math.inf + 1j, 2 + 9j, math.inf + 0j, 0j, math.nan + 0j]),
        0,
    ),
]
