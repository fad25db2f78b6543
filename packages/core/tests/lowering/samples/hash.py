"""Samples for lowering/hash.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

hashed = aten.hash_tensor.default
X = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))

SAMPLES: list[Sample] = [
    sample(hashed, X),
    sample(hashed, X, [1]),
    sample(hashed, X.double(), [-1, 0], keepdim=True),
    sample(hashed, X.bfloat16(), [2]),
    sample(hashed, X > 0, [0]),
    sample(hashed, (X * 90).to(torch.int8), [0, 1]),
    sample(hashed, (X * 90).long()),
    sample(hashed, X[0, 0, 0]),
]
