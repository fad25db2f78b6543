"""Samples for lowering/linalg/decompose.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
SHAPES = [(3, 3), (2, 5, 3), (2, 1, 3, 5), (0, 3, 3), (2, 0, 3), (2, 3, 0)]


def positive(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    x = matrix(*shape, dtype=dtype)
    return x @ x.mH + torch.eye(shape[-1], dtype=dtype)


def matrix(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    x = normal(*shape, dtype=torch.float64)
    return (torch.complex(x, normal(*shape, dtype=torch.float64)) if dtype.is_complex else x).to(
        dtype
    )


def only_info(actual: Any, expected: Any) -> None:
    """Which minor failed; the factor of such a matrix is nan here and unfinished on the CPU."""
    torch.testing.assert_close(actual[1], expected[1])
    good = expected[1] == 0
    torch.testing.assert_close(actual[0][good], expected[0][good])
    assert actual[0][~good].isnan().any()


def makes(x: torch.Tensor) -> Callable[[Any, Any], None]:
    """The singular values are PyTorch's; the vectors are orthonormal, and make the matrix again."""

    def compare(actual: Any, expected: Any) -> None:
        u, values, vh = actual
        torch.testing.assert_close(values, expected[1])
        assert u.shape == expected[0].shape and vh.shape == expected[2].shape
        k = values.shape[-1]
        whole = u[..., :k] @ torch.diag_embed(values).to(u.dtype) @ vh[..., :k, :]
        torch.testing.assert_close(whole, x, rtol=1e-4, atol=1e-5)
        for rows in (u.mH, vh):
            eye = torch.eye(rows.shape[-2], dtype=u.dtype).expand(*rows.shape[:-1], -1)
            torch.testing.assert_close(rows @ rows.mH, eye, rtol=1e-4, atol=1e-5)

    return compare


def svd(x: torch.Tensor, full_matrices: bool = False) -> Sample:
    why = "the phase of each pair of vectors is open"
    return Sample(aten._linalg_svd.default, (x, full_matrices), compare=makes(x), why=why)


bad = torch.stack(
    [torch.diag(torch.tensor(d)) for d in ([1.0, 2, 3], [1, -1, -1], [1, 2, 0], [-1, 1, 1])]
)
indefinite = torch.stack([torch.tensor([[1.0, 2], [2, 1]]), torch.tensor([[2.0, 1], [1, 2]])])
lu, pivots = torch.linalg.lu_factor(matrix(2, 4, 3))
packed, tau = torch.geqrf(matrix(2, 5, 3))

SAMPLES: list[Sample] = [
    *[
        sample(aten.linalg_cholesky_ex.default, positive(2, 3, 3, dtype=d), upper=upper)
        for d in DTYPES
        for upper in (False, True)
    ],
    sample(aten.linalg_cholesky_ex.default, torch.empty(0, 3, 3)),
    sample(aten.linalg_cholesky_ex.default, torch.empty(2, 0, 0)),
    *[
        Sample(aten.linalg_cholesky_ex.default, (x,), {"upper": upper}, compare=only_info)
        for x in (bad, indefinite, indefinite.to(torch.complex64))
        for upper in (False, True)
    ],
    *[sample(aten.cholesky.default, positive(3, 3), upper) for upper in (False, True)],
    *[sample(aten.linalg_lu_factor_ex.default, matrix(*shape)) for shape in SHAPES],
    *[sample(aten.linalg_lu_factor_ex.default, matrix(3, 3, dtype=d)) for d in DTYPES],
    sample(aten.linalg_lu_factor_ex.default, torch.zeros(3, 3)),
    sample(aten.linalg_lu_factor_ex.default, torch.ones(2, 3, 3)),
    *[sample(aten.linalg_lu.default, matrix(*shape)) for shape in SHAPES],
    sample(aten.linalg_lu.default, matrix(4, 4, dtype=torch.complex64)),
    *[
        sample(aten.lu_unpack.default, lu, pivots, unpack_data, unpack_pivots)
        for unpack_data in (False, True)
        for unpack_pivots in (False, True)
    ],
    *[
        sample(aten.linalg_qr.default, matrix(*shape), mode)
        for shape in SHAPES
        for mode in ("reduced", "complete", "r")
    ],
    *[sample(aten.linalg_qr.default, matrix(4, 3, dtype=d)) for d in DTYPES],
    *[sample(aten.geqrf.default, matrix(*shape)) for shape in SHAPES],
    sample(aten.linalg_householder_product.default, packed, tau),
    sample(aten.linalg_householder_product.default, packed, tau[..., :2]),
    sample(aten.linalg_householder_product.default, packed, tau[..., :0]),
    *[
        sample(aten.ormqr.default, packed, tau, matrix(2, 5, 5), left, transpose)
        for left in (False, True)
        for transpose in (False, True)
    ],
    *[svd(matrix(*shape), full) for shape in SHAPES for full in (False, True)],
    *[svd(matrix(4, 3, dtype=d)) for d in DTYPES],
    *[sample(aten._linalg_svd.default, matrix(*shape), False, False) for shape in SHAPES],
    sample(aten._linalg_svd.default, matrix(3, 3, dtype=torch.complex64), False, False),
]
