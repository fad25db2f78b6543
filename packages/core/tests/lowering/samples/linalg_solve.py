"""Samples for lowering/linalg/solve.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
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


def regular(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return matrix(*shape, dtype=dtype) + 4 * torch.eye(shape[-1], dtype=dtype)


def only_info(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual[-1], expected[-1])


A, B = regular(2, 3, 3), matrix(2, 3, 2)
Z = regular(2, 3, 3, dtype=torch.complex128)
hermitian = A + A.mH
low_rank = matrix(2, 5, 2) @ matrix(2, 2, 4)
nothing = torch.empty(2, 0, 0)


def factored(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lu, pivots = torch.linalg.lu_factor(x)
    return lu, pivots


BOTH = (False, True)
SAMPLES: list[Sample] = [
    *[
        sample(
            aten.linalg_solve_triangular.default, a, b, upper=upper, left=left, unitriangular=unit
        )
        for a, b in ((A, matrix(2, 3, 3)), (Z, Z.flip(0)), (A[0], matrix(2, 3, 3)))
        for upper in BOTH
        for left in BOTH
        for unit in BOTH
    ],
    *[
        sample(
            aten.linalg_solve_triangular.default,
            regular(3, 3, dtype=d),
            matrix(3, 2, dtype=d),
            upper=True,
        )
        for d in DTYPES
    ],
    sample(aten.linalg_solve_triangular.default, A, torch.empty(2, 3, 0).double(), upper=True),
    sample(aten.linalg_solve_triangular.default, nothing, nothing, upper=True),
    *[
        sample(aten.triangular_solve.default, b, a, upper, transpose, unit)
        for a, b in ((A, B), (Z, B.to(Z.dtype)), (A[0], B))
        for upper in BOTH
        for transpose in BOTH
        for unit in BOTH
    ],
    *[
        sample(aten.linalg_lu_solve.default, *factored(a), b, left=left, adjoint=adjoint)
        for a, b in ((A, matrix(2, 3, 3)), (Z, Z.flip(0)), (A[0], matrix(2, 3, 3)))
        for left in BOTH
        for adjoint in BOTH
    ],
    *[sample(aten._linalg_solve_ex.default, A.to(d), B.to(d)) for d in DTYPES],
    sample(aten._linalg_solve_ex.default, Z, Z.flip(0), left=False),
    sample(aten._linalg_solve_ex.default, A, B.mT, left=False),
    sample(aten._linalg_solve_ex.default, A, B[..., 0]),
    sample(aten._linalg_solve_ex.default, A[0], B[0, :, 0]),
    sample(aten._linalg_solve_ex.default, A[0], B),
    sample(aten._linalg_solve_ex.default, A, B[0]),
    sample(aten._linalg_solve_ex.default, nothing, torch.empty(2, 0, 3)),
    Sample(aten._linalg_solve_ex.default, (torch.ones(2, 2), torch.eye(2)), compare=only_info),
    *[sample(aten.linalg_inv_ex.default, regular(2, 3, 3, dtype=d)) for d in DTYPES],
    sample(aten.linalg_inv_ex.default, nothing),
    Sample(aten.linalg_inv_ex.default, (torch.ones(2, 3, 3),), compare=only_info),
    *[
        sample(aten.cholesky_solve.default, b, a, upper)
        for a, b in ((A, B), (Z, B.to(Z.dtype)), (A[0], B), (A, B[0]))
        for upper in BOTH
    ],
    *[
        sample(aten.cholesky_inverse.default, torch.linalg.cholesky(a @ a.mH, upper=upper), upper)
        for a in (A, Z, A[0].float())
        for upper in BOTH
    ],
    sample(aten.cholesky_inverse.default, A),
    sample(aten.cholesky_inverse.default, torch.empty(0, 0)),
    sample(aten.linalg_pinv.atol_rtol_tensor, matrix(2, 5, 3)),
    sample(aten.linalg_pinv.atol_rtol_tensor, matrix(3, 5, dtype=torch.complex64)),
    sample(aten.linalg_pinv.atol_rtol_tensor, low_rank),
    sample(aten.linalg_pinv.atol_rtol_tensor, matrix(2, 5, 3), rtol=torch.tensor(0.5)),
    sample(aten.linalg_pinv.atol_rtol_tensor, matrix(2, 5, 3), atol=torch.tensor([1.0, 2.0])),
    sample(aten.linalg_pinv.atol_rtol_tensor, hermitian, hermitian=True),
    sample(aten.linalg_pinv.atol_rtol_tensor, torch.empty(2, 0, 3)),
    *[
        sample(aten.linalg_lstsq.default, matrix(2, *shape), matrix(2, shape[0], 2), driver=driver)
        for shape in ((5, 3), (3, 5), (3, 3))
        for driver in (None, "gelsy", "gels", "gelsd", "gelss")
    ],
    sample(aten.linalg_lstsq.default, low_rank, matrix(2, 5, 3)),
    sample(aten.linalg_lstsq.default, low_rank[0], matrix(5, 1), 1e-6),
    sample(aten.linalg_lstsq.default, matrix(2, 5, 3), matrix(2, 5)),
    sample(
        aten.linalg_lstsq.default,
        matrix(4, 3, dtype=torch.complex64),
        matrix(4, 2, dtype=torch.complex64),
    ),
    *[
        sample(aten.linalg_lstsq.default, torch.empty(2, 0, 3), torch.empty(2, 0, 2), driver=driver)
        for driver in (None, "gels", "gelsd")
    ],
]
