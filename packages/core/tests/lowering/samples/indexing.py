"""Samples for lowering/indexing.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


x = normal(4, 5, 6, 7)
small = torch.arange(12).reshape(3, 4)
a = torch.tensor([0, -1, 2])
b = torch.tensor([[1], [-2]])
twice = torch.tensor([1, 1, -3, 1])
DTYPES = (torch.bool, torch.int32, torch.float16, torch.bfloat16, torch.float64, torch.complex64)

INDICES = [
    [a],
    [None, a],
    [a, a],
    [a, b],
    [None, a, b],
    [a, None, b],
    [None, a, None, b],
    [a, None, None, a],
    [None, None, None, b],
    [a, b, a, b],
    [torch.tensor(2)],
    [torch.tensor(-1), None, a],
    [None, torch.tensor([], dtype=torch.int64)],
    [a.to(torch.int32)],
]

SAMPLES: list[Sample] = [
    *[sample(aten.index.Tensor, x, indices) for indices in INDICES],
    *[sample(aten._unsafe_index.Tensor, x, indices) for indices in INDICES[:3]],
    *[sample(aten.index.Tensor, x[..., 0, 0].to(d), [a, b]) for d in DTYPES],
    sample(aten.index.Tensor, torch.empty(0, 3), [torch.tensor([], dtype=torch.int64)]),
    sample(aten.index.Tensor, torch.empty(3, 0), [a]),
    *[
        sample(
            aten.index_put.default, x, indices, normal(*aten.index.Tensor(x, indices).shape), True
        )
        for indices in INDICES
    ],
    *[sample(aten.index_put.default, x, indices, torch.tensor(5.0)) for indices in INDICES],
    sample(aten.index_put.default, x, [a, None, torch.tensor([0, 1, 2])], normal(3, 1, 7)),
    *[
        sample(aten.index_put.default, normal(4, 2, dtype=d), [twice], normal(4, 2, dtype=d), True)
        for d in DTYPES
    ],
    sample(aten._unsafe_index_put.default, x, [None, a], normal(6, 7), True),
    sample(
        aten.index_put.default,
        torch.empty(0, 3),
        [torch.tensor([], dtype=torch.int64)],
        torch.tensor(1.0),
    ),
    sample(aten.take.default, small, torch.tensor([[0, -1], [5, -12]])),
    sample(aten.take.default, small, torch.tensor(3)),
    sample(aten.take.default, torch.tensor(2.5), torch.tensor([0, 0])),
    sample(aten.take.default, small, torch.tensor([], dtype=torch.int64)),
    sample(
        aten.put.default,
        small,
        torch.tensor([[0, -1], [5, -12]]),
        torch.tensor([1, 2, 3, 4])[[0, 1, 2, 0]],
        True,
    ),
    sample(aten.put.default, normal(3, 4), torch.tensor([[0, -1]]), normal(2)),
    sample(
        aten.put.default,
        normal(3, 4, dtype=torch.bfloat16),
        twice,
        normal(4, dtype=torch.bfloat16),
        True,
    ),
    sample(aten.index_select.default, x, 0, torch.tensor([3, 0, 3])),
    sample(aten.index_select.default, x, -2, torch.tensor([3, 0, 3], dtype=torch.int32)),
    sample(aten.index_select.default, x, 1, torch.tensor(2)),
    sample(aten.index_select.default, x, 1, torch.tensor([], dtype=torch.int64)),
    sample(aten.index_select.default, torch.tensor(2.5), 0, torch.tensor([0])),
    sample(aten.index_select.default, small.to(torch.bool), 1, torch.tensor([1, 0])),
]
