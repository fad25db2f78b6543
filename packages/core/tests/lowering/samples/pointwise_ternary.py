"""Samples of `lowering/pointwise/ternary.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

X = torch.tensor([[-2.0, 0.5, 3.0], [math.nan, 1.5, -math.inf]])
Y = torch.tensor([1.0, -1.0, 0.25])
Z = torch.tensor([[2.0], [-0.5]])
INTS = torch.tensor([-4, 0, 7])
MASK = torch.tensor([True, False, True])
COMPLEX = torch.tensor([1 + 2j, 3j, -1 + 0j])

SAMPLES: list[Sample] = [
    sample(aten.where.self, MASK, X, Y),
    sample(aten.where.self, X > 0, X, torch.tensor(7)),
    sample(aten.where.self, MASK, INTS, X.double()),
    sample(aten.where.self, MASK, torch.tensor(1), torch.tensor(2.5)),
    sample(aten.where.self, torch.tensor(True), X.bfloat16(), Y),
    sample(aten.where.self, torch.tensor([[True], [False]]), COMPLEX, Y),
    sample(aten.where.self, torch.zeros(0, 3, dtype=torch.bool), Y, Y),
    *(sample(aten.clamp.default, x, 0, 1) for x in (X, INTS, X.half(), torch.tensor(3.0))),
    sample(aten.clamp.default, X, -1.5),
    sample(aten.clamp.default, X, None, 0.75),
    sample(aten.clamp.default, X, 2, 1),
    sample(aten.clamp.default, INTS, -0.5, 2.5),
    sample(aten.clamp.default, X, math.nan, 1.0),
    sample(aten.clamp.Tensor, X, Y, Z),
    sample(aten.clamp.Tensor, X, None, Y.double()),
    sample(aten.clamp.Tensor, INTS, torch.tensor(0), torch.tensor(3)),
    sample(aten.clamp_min.default, X, 0),
    sample(aten.clamp_min.Tensor, X, Y),
    sample(aten.clamp_max.default, INTS, 1.5),
    sample(aten.clamp_max.Tensor, X, Y),
    *(sample(aten.lerp.Scalar, X, Y, weight) for weight in (0, 0.25, 0.75, 1.0, 2.0)),
    sample(aten.lerp.Scalar, X.bfloat16(), Y.bfloat16(), 0.1),
    sample(aten.lerp.Scalar, COMPLEX, COMPLEX.flip(0), 0.3),
    sample(aten.lerp.Tensor, X, Y, torch.tensor([0.1, 0.5, 0.9])),
    sample(aten.lerp.Tensor, X.half(), Y.half(), torch.tensor(0.7).half()),
    sample(aten.addcmul.default, X, Y, Z),
    sample(aten.addcmul.default, X, Y, Z, value=-0.5),
    sample(aten.addcmul.default, INTS, INTS, INTS, value=2),
    sample(aten.addcmul.default, X.bfloat16(), Y.bfloat16(), Z.bfloat16(), value=0.1),
    sample(aten.addcmul.default, COMPLEX, COMPLEX, Y, value=2),
    sample(aten.addcdiv.default, X, Y, Z),
    sample(aten.addcdiv.default, X, Y, Z, value=-0.001),
    sample(aten.addcdiv.default, X.double(), Y.double(), Z.double(), value=3),
    sample(aten.addcdiv.default, X.half(), Y.half(), Z.half(), value=0.1),
]
