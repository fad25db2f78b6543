"""Samples of `lowering/pointwise/bessel.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.lowering.pointwise.bessel import BESSEL

NEGATIVE = [-30.0, -8.5, -5.0, -2.09, -1.0, -0.3, -0.0]
POSITIVE = [1e-6, 0.4, 1.0, 1.9, 2.0, 2.09, 2.5, 4.9, 5.0, 5.2, 7.9, 8.0, 8.4, 20.0, 80.0, 104.0]
X = torch.tensor([*NEGATIVE, 0.0, *POSITIVE])
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf])
INTS = torch.tensor([0, 1, 2, 9])

SAMPLES: list[Sample] = [
    row
    for op, _ in BESSEL
    for row in (
        sample(op, X),
        sample(op, X.double()),
        sample(op, torch.linspace(-12, 12, 977, dtype=torch.float64)),
        sample(op, INTS),
        sample(op, INTS > 0),
        sample(op, torch.tensor(2.2)),
        sample(op, X[:0]),
        sample(op, SPECIAL),
    )
]
