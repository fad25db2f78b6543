"""Samples for lowering/embedding.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
INT32, BF16 = torch.int32, torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


rows = torch.tensor([[1, 2, 4, 1], [0, 1, 6, 6]])
backward = aten.embedding_dense_backward.default
renorm = aten.embedding_renorm.default

SAMPLES: list[Sample] = [
    sample(aten.embedding.default, normal(7, 3), rows),
    sample(aten.embedding.default, normal(7, 3), rows.to(INT32), 2, True, False),
    sample(aten.embedding.default, normal(7, 3, dtype=BF16), rows[0]),
    sample(aten.embedding.default, normal(7, 3), torch.tensor(4)),
    sample(aten.embedding.default, normal(7, 3), rows[:, :0]),
    sample(backward, normal(2, 4, 3), rows, 7, -1, False),
    sample(backward, normal(2, 4, 3), rows.to(INT32), 7, 1, False),
    sample(backward, normal(2, 4, 3), rows, 7, -1, True),
    sample(backward, normal(2, 4, 3), rows, 7, 6, True),
    sample(backward, normal(3, dtype=torch.float64), torch.tensor(5), 7, -1, False),
    sample(backward, normal(2, 0, 3), rows[:, :0], 7, -1, False),
    sample(renorm, normal(7, 3), rows, 1.0, 2.0),
    sample(renorm, normal(7, 3), rows.to(INT32), 0.5, 1.0),
    sample(renorm, normal(7, 3, dtype=torch.float64), rows[0], 1.5, float("inf")),
    sample(renorm, normal(7, 3), rows[:, :0], 1.0, 2.0),
    # More equal terms than a sum in bfloat16 could count.
    Sample(
        backward,
        (torch.ones(600, 2, dtype=BF16), torch.zeros(600, dtype=torch.int64), 3, -1, False),
        why="the CPU kernel adds up in bfloat16 and stops at 256",
        compare=lambda actual, _: torch.testing.assert_close(
            actual, torch.tensor([[600.0] * 2, [0.0] * 2, [0.0] * 2], dtype=BF16)
        ),
    ),
]
