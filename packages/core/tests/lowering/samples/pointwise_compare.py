"""Samples of `lowering/pointwise/compare.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.lowering.pointwise import compare
from torch_pjrt.overloads import aten

X = torch.tensor([[-1.0, 0.0, 2.0], [math.nan, math.inf, -0.0]])
Y = torch.tensor([0.0, 0.0, 2.0])
INTS = torch.tensor([-1, 0, 2])
PAIRS = [
    (X, Y),
    (X, torch.tensor(2.0)),
    (X, INTS),
    (X.bfloat16(), Y),
    (X.half(), Y.half()),
    (X.double(), Y),
    (INTS, INTS.int()),
    (INTS > 0, INTS < 1),
    (INTS > 0, INTS),
    (torch.zeros(0, 3), Y),
    (INTS.abs().to(torch.uint8), INTS),
]
NUMBERS = [
    (X, 2),
    (X, 0.5),
    (X.bfloat16(), 0.1),
    (INTS, 0.5),
    (INTS, True),
    (INTS > 0, 1),
    (INTS.abs().to(torch.uint8), -1),
    (INTS.to(torch.int8), 300),
    (torch.tensor(3), 2.5),
]
COMPLEX = torch.tensor([1j, 2 + 0j, 0j])

SAMPLES: list[Sample] = [
    *(sample(packet.Tensor, x, y) for packet, _ in compare.COMPARE for x, y in PAIRS),
    *(sample(packet.Scalar, x, y) for packet, _ in compare.COMPARE for x, y in NUMBERS),
    *(sample(packet.Tensor, COMPLEX, Y) for packet in (aten.eq, aten.ne)),
    *(sample(packet.Scalar, COMPLEX, 2) for packet in (aten.eq, aten.ne)),
    *(sample(op, x, y) for op, _ in compare.LOGICAL for x, y in [*PAIRS, (COMPLEX, X)]),
]
