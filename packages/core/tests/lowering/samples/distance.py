"""Samples for lowering/distance.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


inf = float("inf")
P = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, inf)
a, b = normal(5, 4), normal(6, 4)
a[1], a[2, 0] = b[2], b[3, 0]
many, others = normal(30, 3), normal(2, 28, 3)
rows = normal(5, 4)
rows[1] = rows[3]
x = normal(3, 4, 5)

SAMPLES: list[Sample] = [
    *[sample(aten._cdist_forward.default, a, b, p, None) for p in P],
    *[sample(aten._cdist_forward.default, a.double(), b.double(), p, 2) for p in P],
    sample(aten._cdist_forward.default, many, others, 2.0, None),
    sample(aten._cdist_forward.default, many, others, 2.0, 2),
    sample(aten._cdist_forward.default, many.double(), others.double(), 2.0, 1),
    sample(aten._cdist_forward.default, normal(2, 1, 5, 4), normal(3, 6, 4), 1.0, None),
    sample(aten._cdist_forward.default, torch.empty(0, 4), b, 2.0, None),
    sample(aten._cdist_forward.default, torch.empty(5, 0), torch.empty(6, 0), 2.0, None),
    sample(aten._cdist_forward.default, torch.empty(5, 0), torch.empty(6, 0), inf, None),
    sample(aten._euclidean_dist.default, many, others),
    *[
        sample(
            aten._cdist_backward.default,
            normal(5, 6),
            a,
            b,
            p,
            aten._cdist_forward.default(a, b, p, 2),
        )
        for p in P
    ],
    sample(
        aten._cdist_backward.default,
        normal(2, 5, 6).double(),
        normal(2, 5, 4).double(),
        normal(2, 6, 4).double(),
        2.0,
        normal(2, 5, 6).double().abs(),
    ),
    sample(
        aten._cdist_backward.default,
        normal(3, 5, 6),
        a,
        b,
        2.0,
        aten._cdist_forward.default(a, b, 2.0, 2),
    ),
    *[sample(aten._pdist_forward.default, rows, p) for p in P],
    sample(aten._pdist_forward.default, normal(1, 4)),
    *[
        sample(
            aten._pdist_backward.default, normal(10), rows, p, aten._pdist_forward.default(rows, p)
        )
        for p in P
    ],
    *[sample(aten.renorm.default, x, p, dim, 2) for p in (0.5, 1, 2, inf) for dim in (0, -1)],
    sample(aten.renorm.default, x.bfloat16(), 2, 1, 1.5),
    sample(aten.renorm.default, x.double(), 2, 1, 1e9),
    sample(aten.renorm.default, x.to(torch.complex64), 2, 1, 1.5),
]
