"""Lowerings of eigenvalues and eigenvectors, whose length is 1 and whose phase is left open."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from torch_pjrt.lowering.linalg.decompose import adjoint, real_dtype, with_nan_for_infinities
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("linalg.eigen")


@table.lowers(aten._linalg_eigh.default)
def linalg_eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    """Only one triangle is read. Without `compute_v` the vectors are empty."""
    if A.size:
        lower = A if UPLO.upper() == "L" else adjoint(A)
        vectors, values = lax.linalg.eigh(lower, lower=True, symmetrize_input=False)
    else:
        vectors, values = A, lax.full(A.shape[:-1], 0, real_dtype(A))
    return values, vectors if compute_v else lax.full((0,), 0, A.dtype)


def _complex_dtype(x: Array) -> np.dtype:
    return np.dtype(np.complex128 if real_dtype(x) == np.float64 else np.complex64)


@table.lowers(aten.linalg_eig.default)
def linalg_eig(self: Array) -> tuple[Array, Array]:
    """Complex, also for a real matrix."""
    if not self.size:
        dtype = _complex_dtype(self)
        return lax.full(self.shape[:-1], 0, dtype), lax.full(self.shape, 0, dtype)
    values, vectors = lax.linalg.eig(with_nan_for_infinities(self), compute_left_eigenvectors=False)
    return values, vectors


@table.lowers(aten._linalg_eigvals.default)
def linalg_eigvals(self: Array) -> Array:
    if not self.size:
        return lax.full(self.shape[:-1], 0, _complex_dtype(self))
    (values,) = lax.linalg.eig(
        with_nan_for_infinities(self),
        compute_left_eigenvectors=False,
        compute_right_eigenvectors=False,
    )
    return values
