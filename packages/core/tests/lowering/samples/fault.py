"""Samples of `lowering/fault.py`."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt import operators

NAN, INF = float("nan"), float("inf")
MATRICES = torch.tensor(
    [[[1.0, 2.0], [3.0, 4.0]], [[1.0, NAN], [3.0, 0.0]], [[0.0, 1.0], [INF, 2.0]]]
)

SAMPLES: list[Sample] = [
    *(
        sample(operators.fault, x, "less than 0")
        for x in (torch.tensor([0.0, -1.0]), torch.tensor(2.0))
    ),
    sample(operators.fault, torch.tensor([0.0, NAN]), "not at least 0"),
    *(
        sample(operators.fault, torch.tensor([0.0, 1.0, x]), "no chance")
        for x in (0.5, 1.5, -0.1, NAN)
    ),
    *(
        sample(operators.fault, torch.tensor(x), "zero")
        for x in ([3, 0, 1, 0], [1, 2], [True, False])
    ),
    sample(operators.fault, torch.empty(0, 2, 2), "nan in a matrix"),
    sample(operators.fault, MATRICES, "zero on the diagonal"),
    sample(operators.fault, MATRICES, "nan in a matrix"),
    sample(operators.fault, MATRICES.to(torch.complex64), "nan in a matrix"),
    sample(operators.fault, MATRICES, "nan below the diagonal"),
    sample(operators.fault, MATRICES, "nan above the diagonal"),
    sample(operators.fault, MATRICES, "not finite in a matrix"),
    sample(operators.fault, MATRICES[2], "not finite in a matrix"),
]
