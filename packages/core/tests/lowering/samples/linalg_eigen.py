"""Samples for lowering/linalg/eigen.py."""

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


def matrix(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    x = normal(*shape, dtype=torch.float64)
    return (torch.complex(x, normal(*shape, dtype=torch.float64)) if dtype.is_complex else x).to(
        dtype
    )


def by_size(values: torch.Tensor) -> torch.Tensor:
    """In an order that does not depend on rounding."""
    order = (values.real + 1e-3 * values.imag).argsort(-1)
    return values.gather(-1, order)


def solves(x: torch.Tensor) -> Callable[[Any, Any], None]:
    """The values are PyTorch's; the vectors have length 1 and are only stretched by the matrix."""

    def compare(actual: Any, expected: Any) -> None:
        values, vectors = actual
        same = by_size if values.is_complex() else torch.clone
        torch.testing.assert_close(same(values), same(expected[0]), rtol=1e-4, atol=1e-5)
        assert vectors.shape == expected[1].shape and vectors.dtype == expected[1].dtype
        stretched = vectors * values[..., None, :]
        torch.testing.assert_close(x.to(vectors.dtype) @ vectors, stretched, rtol=1e-4, atol=1e-5)
        lengths = vectors.norm(dim=-2)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))

    return compare


def only_values(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(by_size(actual), by_size(expected), rtol=1e-4, atol=1e-5)


def eigh(x: torch.Tensor, uplo: str = "L") -> Sample:
    one = x.tril() if uplo == "L" else x.triu()
    whole = one + one.mH - torch.diag_embed(one.diagonal(dim1=-2, dim2=-1).real).to(x.dtype)
    return Sample(aten._linalg_eigh.default, (x, uplo), compare=solves(whole), why=WHY)


WHY = "the phase of a vector is open"
rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
hermitian = [(x := matrix(2, 4, 4, dtype=d)) + x.mH for d in DTYPES]

SAMPLES: list[Sample] = [
    *[eigh(x) for x in hermitian],
    eigh(hermitian[1], "U"),
    eigh(torch.diag(torch.tensor([3.0, 1.0, 2.0]))),
    sample(aten._linalg_eigh.default, torch.empty(2, 0, 0)),
    sample(aten._linalg_eigh.default, torch.empty(0, 3, 3)),
    *[sample(aten._linalg_eigh.default, x, "L", False) for x in hermitian],
    *[
        Sample(aten.linalg_eig.default, (x,), compare=solves(x), why=WHY)
        for x in (rotation, *[matrix(2, 4, 4, dtype=d) for d in DTYPES])
    ],
    sample(aten.linalg_eig.default, torch.empty(2, 0, 0)),
    *[
        Sample(aten._linalg_eigvals.default, (x,), compare=only_values, why="the order is open")
        for x in (rotation, *[matrix(2, 4, 4, dtype=d) for d in DTYPES])
    ],
    sample(aten._linalg_eigvals.default, torch.empty(2, 0, 0)),
]
