"""Samples of `lowering/pointwise/polynomial.py`."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.lowering.pointwise.polynomial import POLYNOMIALS
from torch_pjrt.overloads import aten

X = torch.tensor([-2.5, -1.0, -0.999, -0.4, -0.0, 0.0, 0.3, 0.5, 0.77, 1.0, 1.3, 3.0])
DEGREES = torch.tensor([[-2.0], [-0.5], [0.0], [1.0], [2.7], [3.0], [5.0], [7.0], [9.0], [12.0]])
INTS = torch.tensor([0, 1, 2, 5])
HERMITE = (aten.special_hermite_polynomial_h.default, aten.special_hermite_polynomial_he.default)
FAR = torch.tensor([float("inf"), -float("inf"), float("nan"), 600.0])

SAMPLES: list[Sample] = [
    row
    for op, _ in POLYNOMIALS
    for row in (
        sample(op.default, X, DEGREES),
        sample(op.default, X.double(), DEGREES.double()),
        sample(op.default, X, DEGREES.long()),
        sample(op.default, INTS, INTS),
        sample(op.default, X[3], torch.tensor(4)),
        sample(op.default, X[:0], DEGREES[:1]),
        sample(op.n_scalar, X, 3),
        sample(op.n_scalar, X, 11),
        sample(op.x_scalar, 0.6, DEGREES),
        sample(op.x_scalar, 2, DEGREES.long()),
    )
] + [sample(op, X[:4], FAR) for op in HERMITE]
