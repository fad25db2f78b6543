"""Samples for lowering/linalg/matrix.py."""

from __future__ import annotations

import torch

from check import Sample, is_implemented, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def matrix(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    x = normal(*shape, dtype=torch.float64)
    return (torch.complex(x, normal(*shape, dtype=torch.float64)) if dtype.is_complex else x).to(
        dtype
    )


singular = torch.zeros(3, 3)
nothing = torch.empty(2, 0, 0)
HALF = matrix(3, 4, dtype=torch.float16)

SAMPLES: list[Sample] = [
    *[
        sample(op, x)
        for op in (aten._linalg_det.default, aten._linalg_slogdet.default)
        for x in (*[matrix(2, 4, 4, dtype=d) for d in DTYPES], matrix(3, 3), singular, nothing)
    ],
    *[sample(aten.linalg_matrix_exp.default, matrix(2, 4, 4, dtype=d)) for d in DTYPES],
    sample(aten.linalg_matrix_exp.default, matrix(3, 3) * 20),
    sample(aten.linalg_matrix_exp.default, matrix(3, 3) * 1e-3),
    sample(aten.linalg_matrix_exp.default, matrix(1, 1)),
    sample(aten.linalg_matrix_exp.default, torch.diag(torch.tensor([-1e7, 0.0, 0.0]))),
    sample(aten.linalg_matrix_exp.default, singular),
    sample(aten.linalg_matrix_exp.default, nothing),
    *[sample(aten.trace.default, matrix(3, 4, dtype=d)) for d in DTYPES],
    *[sample(aten.trace.default, h) for h in (HALF,) if is_implemented(aten.trace.default, h)],
    sample(aten.trace.default, torch.arange(12, dtype=torch.int32).reshape(4, 3)),
    sample(aten.trace.default, torch.full((3, 3), 200, dtype=torch.uint8)),
    sample(aten.trace.default, torch.empty(0, 3)),
    *[
        sample(aten.linalg_cross.default, matrix(2, 3, dtype=d), matrix(2, 3, dtype=d))
        for d in DTYPES
    ],
    sample(aten.linalg_cross.default, matrix(3, 4), matrix(3, 4), dim=0),
    sample(aten.linalg_cross.default, matrix(2, 1, 3), matrix(1, 4, 3)),
    sample(aten.linalg_cross.default, torch.arange(3), torch.tensor([2, 0, 1])),
]
