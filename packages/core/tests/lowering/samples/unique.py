"""Samples for lowering/unique.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt import operators

nan, inf = torch.nan, torch.inf
x = torch.tensor([3.0, 1, 3, nan, -inf, 1, nan, 3, 2])
ints = torch.tensor([5, -2, 5, 5, 0, -2, 7])
rows = torch.tensor([[1, 2], [0, 5], [1, 2], [1, 1], [0, 5], [0, 5]])
none = torch.empty(0)
DTYPES = (torch.bool, torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float64)

SAMPLES: list[Sample] = [
    *[sample(operators.unique, ints.to(d), None, same) for d in DTYPES for same in (False, True)],
    sample(operators.unique, x[:3], None, False),
    sample(operators.unique, none, None, False),
    sample(operators.unique, ints, torch.tensor(4), False),
    sample(operators.unique, ints, torch.tensor(1), True),
    sample(operators.unique, ints, torch.tensor(7), True),
    *[sample(operators.unique_rows, rows.to(d), None, False) for d in DTYPES],
    sample(operators.unique_rows, rows, None, True),
    sample(operators.unique_rows, rows, torch.tensor(3), False),
    sample(operators.unique_rows, rows.float(), torch.tensor(5), True),
]
