"""Lowerings of linear systems and inverses.

What every rule here keeps:
    batch         the batch dims of matrix and right-hand side broadcast.
    check_errors  is left to the caller, who reads `info`: a program cannot raise.
    singular      a singular matrix gives inf or nan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import INT64
from torch_pjrt.lowering.linalg.decompose import (
    adjoint,
    identity,
    lu_factored,
    lu_info,
    permutation_of,
    real_dtype,
    transposed,
    with_nan_for_infinities,
)
from torch_pjrt.lowering.rearrange import tril, triu
from torch_pjrt.lowering.scatter import taken_along
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Inexact

Array = jax.Array

table = LoweringTable("linalg.solve")

HIGHEST = lax.Precision.HIGHEST


def _one_batch(a: Array, b: Array) -> tuple[Array, Array]:
    """Both with the same batch dims."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (
        jnp.broadcast_to(a, (*batch, *a.shape[-2:])),
        jnp.broadcast_to(b, (*batch, *b.shape[-2:])),
    )


def triangular(
    a: Array,
    b: Array,
    *,
    lower: bool,
    left: bool = True,
    unit: bool = False,
    transpose: bool = False,
    conjugate: bool = False,
) -> Array:
    """X with op(a) X = b, or X op(a) = b. Batch dims broadcast; the other triangle is not read."""
    a, b = _one_batch(a, b)
    if not b.size:
        return b
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=lower,
        transpose_a=transpose,
        conjugate_a=conjugate,
        unit_diagonal=unit,
    )


@table.lowers(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(
    self: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    return triangular(self, B, lower=not upper, left=left, unit=unitriangular)


@table.lowers(aten.triangular_solve.default)
def triangular_solve(
    self: Inexact[Array, "*#batch rows columns"],
    A: Inexact[Array, "*#batch rows rows"],
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Inexact[Array, "*#batch rows columns"], Inexact[Array, "*#batch rows rows"]]:
    """The second result is `A` itself, with the batch dims of the first."""
    a, b = _one_batch(A, self)
    x = triangular(a, b, lower=not upper, unit=unitriangular, transpose=transpose)
    return x, a


def lu_solved(
    lu: Array, permutation: Array, b: Array, left: bool = True, adjoint: bool = False
) -> Array:
    """X with A X = b or X A = b, for A, or its adjoint, with these factors."""
    batch = np.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if not b.size:
        return b
    permutation = jnp.broadcast_to(permutation, (*batch, permutation.shape[-1]))
    conjugate = adjoint and jnp.iscomplexobj(lu)

    def by_factor(b: Array, lower: bool) -> Array:
        return triangular(
            lu,
            b,
            lower=lower,
            left=left,
            unit=lower,
            transpose=adjoint,
            conjugate=conjugate,
        )

    dim = b.ndim - (2 if left else 1)

    def exchanged(b: Array, order: Array) -> Array:
        index = lax.expand_dims(order, (order.ndim,) if left else (order.ndim - 1,))
        return taken_along(b, dim, jnp.broadcast_to(index, b.shape))

    # A = P L U, so A X = b is U X = L⁻¹ Pᵀ b: the exchange comes first, then L. So it is with the
    # adjoint on the right. In the other two cases U comes first, and the exchange last.
    if left != adjoint:
        return by_factor(by_factor(exchanged(b, permutation), lower=True), lower=False)
    inverse = jnp.argsort(permutation, -1)
    return exchanged(by_factor(by_factor(b, lower=False), lower=True), inverse)


@table.lowers(aten.linalg_lu_solve.default)
def linalg_lu_solve(
    LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False
) -> Array:
    return lu_solved(LU, permutation_of(pivots, LU.shape[-2]), B, left, adjoint)


@table.lowers(aten._linalg_solve_ex.default)
def linalg_solve_ex(
    A: Array, B: Array, *, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:
    """The solution, and the factors of `A`, its pivots and `info`. `B` may be a batch of vectors."""
    is_vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    lu, pivots, permutation = lu_factored(A)
    b = lax.expand_dims(B, (B.ndim,)) if is_vector else B
    if is_vector and not left:
        b = transposed(b)
    x = lu_solved(lu, permutation, b, left)
    if is_vector:
        x = lax.squeeze(x, (x.ndim - 1 if left else x.ndim - 2,))
    return x, lu, pivots, lu_info(lu)


@table.lowers(aten.linalg_inv_ex.default)
def linalg_inv_ex(A: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    lu, _, permutation = lu_factored(A)
    return lu_solved(lu, permutation, identity(A.shape[-1], A)), lu_info(lu)


@table.lowers(aten.cholesky_solve.default)
def cholesky_solve(
    self: Inexact[Array, "*#batch rows columns"],
    input2: Inexact[Array, "*#batch rows rows"],
    upper: bool = False,
) -> Inexact[Array, "*#batch rows columns"]:
    """X with A X = `self`, for A with the Cholesky factor `input2`."""
    conjugate = jnp.iscomplexobj(input2)

    def half(b: Array, transpose: bool) -> Array:
        return triangular(
            input2, b, lower=not upper, transpose=transpose, conjugate=transpose and conjugate
        )

    return half(half(self, transpose=upper), transpose=not upper)


@table.lowers(aten.cholesky_inverse.default)
def cholesky_inverse(self: Array, upper: bool = False) -> Array:
    factor = triu(self) if upper else tril(self)
    return cholesky_solve(identity(self.shape[-1], self), factor, upper)


def _pseudo_inverse(
    a: Array, atol: Array | float, rtol: Array | float, hermitian: bool
) -> tuple[Array, Array, Array]:
    """The pseudo-inverse, the rank (the count of singular values above both tolerances), and these."""
    if hermitian:
        v, values = lax.linalg.eigh(a, symmetrize_input=False)
        u, vh, sizes = v, adjoint(v), lax.abs(values)
    else:
        u, values, vh = lax.linalg.svd(with_nan_for_infinities(a), full_matrices=False)
        sizes = values
    largest = jnp.max(sizes, -1, keepdims=True)
    limit = jnp.maximum(jnp.asarray(atol)[..., None], jnp.asarray(rtol)[..., None] * largest)
    counts = sizes > limit
    inverted = jnp.where(counts, 1 / jnp.where(counts, values, 1), 0).astype(a.dtype)
    inverse = jnp.matmul(adjoint(vh) * inverted[..., None, :], adjoint(u), precision=HIGHEST)
    return inverse, jnp.sum(counts, -1, dtype=INT64), sizes


@table.lowers(aten.linalg_pinv.atol_rtol_tensor)
def linalg_pinv(
    self: Array,
    *,
    atol: Array | None = None,
    rtol: Array | None = None,
    hermitian: bool = False,
) -> Array:
    """Without `rtol` it is the step of the dtype times the larger dim, or 0 where `atol` is given."""
    if not self.size:
        return transposed(self)
    dtype = real_dtype(self)
    usual = jnp.asarray(jnp.finfo(dtype).eps * max(self.shape[-2:]), dtype)
    if rtol is None:
        rtol = usual if atol is None else jnp.where(atol > 0, jnp.zeros((), dtype), usual)
    if atol is None:
        atol = jnp.zeros((), dtype)
    return _pseudo_inverse(self, atol.astype(dtype), rtol.astype(dtype), hermitian)[0]


@table.lowers(aten.linalg_lstsq.default, static=("rcond",))
def linalg_lstsq(
    self: Array, b: Array, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Array, Array, Array, Array]:
    """The solution of least norm among those of least residual, by singular values; and the rank.

    `rcond` is the least size of a singular value that counts, relative to the largest; the CPU's
    default driver estimates that size. Which other results are empty depends on the driver, as on
    CPU: "gels" gives no rank, None and "gelsy" no residuals, "gelsd" and "gelss" the singular values
    too. Their residuals are wanted only where all ranks are full: the kernel drops them.
    """
    is_vector = b.ndim == self.ndim - 1 and b.shape == self.shape[:-1]
    right = lax.expand_dims(b, (b.ndim,)) if is_vector else b
    rows, columns = self.shape[-2:]
    dtype = real_dtype(self)
    if self.size:
        usual = float(jnp.finfo(dtype).eps) * max(rows, columns)
        limit = dtype.type(usual if rcond is None else rcond)
        inverse, rank, values = _pseudo_inverse(self, dtype.type(0), limit, False)
    else:
        inverse = transposed(self)
        rank = lax.full(self.shape[:-2], 0, INT64)
        values = lax.full((*self.shape[:-2], min(rows, columns)), 0, dtype)
    x = jnp.matmul(inverse, right, precision=HIGHEST)
    residuals = nothing = lax.full((0,), 0, dtype)
    if rows > columns and driver not in (None, "gelsy"):
        missed = right - jnp.matmul(self, x, precision=HIGHEST)
        residuals = jnp.sum(lax.square(lax.abs(missed)), -2)
    if driver == "gels":
        rank = lax.full((0,), 0, INT64)
    if driver not in ("gelsd", "gelss"):
        values = nothing
    return lax.squeeze(x, (x.ndim - 1,)) if is_vector else x, residuals, rank, values
