"""Samples for lowering/mask.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt import operators
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


x = normal(3, 4)
mask = x > 0
some = torch.tensor([True, False, True, True])
DTYPES = (torch.bool, torch.int32, torch.float16, torch.bfloat16, torch.float64, torch.complex64)

SAMPLES: list[Sample] = [
    *[sample(aten.masked_fill.Scalar, x.to(d), some, 1) for d in DTYPES],
    sample(aten.masked_fill.Scalar, x, mask, -torch.inf),
    sample(aten.masked_fill.Scalar, x[0], mask, torch.nan),
    sample(aten.masked_fill.Scalar, torch.tensor(2.0), torch.tensor(True), 3),
    sample(aten.masked_fill.Scalar, torch.empty(0, 4), some, 3),
    sample(aten.masked_fill.Tensor, x, mask, torch.tensor(2.5)),
    sample(aten.masked_fill.Tensor, x.bfloat16(), mask, torch.tensor(3)),
    *[sample(aten.masked_scatter.default, x.to(d), mask, normal(20).to(d)) for d in DTYPES],
    sample(aten.masked_scatter.default, x, some, normal(3, 3)),
    sample(aten.masked_scatter.default, x[0], mask, normal(12)),
    sample(aten.masked_scatter.default, x, torch.zeros(4, dtype=torch.bool), torch.empty(0)),
    sample(aten.masked_scatter.default, torch.empty(0, 4), some, normal(2)),
    sample(aten.masked_scatter_backward.default, x, mask, [3, 4]),
    sample(aten.masked_scatter_backward.default, x, torch.ones(3, 4, dtype=torch.bool), [5, 4]),
    sample(aten.masked_scatter_backward.default, x, some.expand(3, 4), [9]),
    *[sample(aten.nonzero_static.default, (x > 0).to(d), size=12) for d in DTYPES],
    sample(aten.nonzero_static.default, x.view(2, 3, 2) > 0, size=3),
    sample(aten.nonzero_static.default, some, size=5, fill_value=0),
    sample(aten.nonzero_static.default, torch.zeros(3), size=2),
    sample(aten.nonzero_static.default, torch.empty(0, 3), size=2),
    sample(aten.nonzero_static.default, some, size=0),
    *[sample(operators.fill_rest, x.to(d), torch.tensor(2), 1, 1, 1) for d in DTYPES],
    sample(operators.fill_rest, x, torch.tensor(1), 0, 2, -torch.inf),
    sample(operators.fill_rest, x, torch.tensor(0), 0, 1, torch.nan),
    sample(operators.fill_rest, x, torch.tensor(4), 1, 1, 7),
]
