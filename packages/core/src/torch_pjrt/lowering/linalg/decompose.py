"""Lowerings of factorizations: Cholesky, LU, QR and the singular values.

What every rule here keeps:
    batch         all dims but the last two; they may be empty.
    check_errors  is left to the caller, who reads `info`: a program cannot raise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import INT32
from torch_pjrt.lowering.rearrange import tril, triu
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("linalg.decompose")


def transposed(x: Array) -> Array:
    """The matrices transposed."""
    return lax.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(x: Array) -> Array:
    """The matrices transposed and conjugated."""
    return transposed(lax.conj(x) if jnp.iscomplexobj(x) else x)


def with_nan_for_infinities(x: Array) -> Array:
    """LAPACK's iterations for singular values and eigenvalues end on nan; on infinities some never do."""
    return jnp.where(jnp.isfinite(x), x, jnp.full_like(x, jnp.nan))


def identity(n: int, like: Array) -> Array:
    """Identity matrices with the batch dims and the dtype of `like`."""
    return jnp.broadcast_to(jnp.eye(n, dtype=like.dtype), (*like.shape[:-2], n, n))


def real_dtype(x: Array) -> np.dtype:
    return np.dtype(jnp.finfo(x.dtype).dtype)


def _bad_minor(x: Array) -> Array:
    """The order of the first leading minor that is not positive, found by elimination; 0 if none."""
    n = x.shape[-1]
    position = lax.iota(INT32, n)

    def eliminate(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, bad = state
        column = lax.dynamic_index_in_dim(rest, k, rest.ndim - 1, keepdims=False)
        pivot = lax.dynamic_index_in_dim(column, k, column.ndim - 1, keepdims=False).real
        fails = (bad == 0) & ~(pivot > 0)
        bad = jnp.where(fails, k + 1, bad)
        column = jnp.where(position > k, column, 0) / jnp.where(pivot > 0, pivot, 1)[..., None]
        row = jnp.conj(column) * jnp.where(pivot > 0, pivot, 1)[..., None]
        return rest - column[..., :, None] * row[..., None, :], bad

    start = (x, lax.full(x.shape[:-2], 0, INT32))
    return lax.fori_loop(INT32.type(0), INT32.type(n), eliminate, start)[1]


@table.lowers(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(
    self: Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[Array, Array]:
    """Where a matrix is not positive-definite its factor is nan, and `info` the order of the minor."""
    lower = adjoint(self) if upper else self
    if not self.size:
        return self, lax.full(self.shape[:-2], 0, INT32)
    factor = lax.linalg.cholesky(lower, symmetrize_input=False)
    failed = jnp.isnan(factor[..., -1, -1])
    nothing = lax.full(self.shape[:-2], 0, INT32)
    info = lax.cond(jnp.any(failed), _bad_minor, lambda _: nothing, lower)
    info = lax.select(failed, lax.max(info, lax.full_like(info, 1)), nothing)
    factor = tril(factor)
    return adjoint(factor) if upper else factor, info


@table.lowers(aten.cholesky.default)
def cholesky(self: Array, upper: bool = False) -> Array:
    return linalg_cholesky_ex(self, upper=upper)[0]


def lu_factored(x: Array) -> tuple[Array, Array, Array]:
    """The packed factors, the pivots as PyTorch counts them, from 1, and the permutation of rows."""
    if not x.size:
        *batch, rows, columns = x.shape
        pivots = lax.full((*batch, min(rows, columns)), 0, INT32)
        return x, pivots, lax.broadcasted_iota(INT32, (*batch, rows), len(batch))
    lu, pivots, permutation = lax.linalg.lu(x)
    return lu, pivots + 1, permutation


def lu_info(lu: Array) -> Array:
    """The first pivot that is exactly 0, counted from 1; 0 if there is none."""
    if not lu.size:
        return lax.full(lu.shape[:-2], 0, INT32)
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    first = lax.argmax(zero, zero.ndim - 1, INT32) + 1
    return lax.select(jnp.any(zero, -1), first, lax.full_like(first, 0))


@table.lowers(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(
    A: Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    """Rows are exchanged whatever `pivot` says, as PyTorch does on the CPU."""
    lu, pivots, _ = lu_factored(A)
    return lu, pivots, lu_info(lu)


def permutation_of(pivots: Array, rows: int) -> Array:
    """What row of the matrix each row of its factors is."""
    if not pivots.size:
        batch = pivots.shape[:-1]
        return lax.broadcasted_iota(INT32, (*batch, rows), len(batch))
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)


def _permutation_matrix(permutation: Array, dtype: np.dtype) -> Array:
    """P with P[permutation[i], i] = 1, so that the matrix is P L U."""
    n = permutation.shape[-1]
    shape = (*permutation.shape[:-1], n, n)
    rows = lax.broadcasted_iota(permutation.dtype, shape, len(shape) - 2)
    return lax.convert_element_type(rows == permutation[..., None, :], dtype)


def _lower_and_upper(lu: Array) -> tuple[Array, Array]:
    rows, columns = lu.shape[-2:]
    k = min(rows, columns)
    left = lax.slice_in_dim(lu, 0, k, axis=lu.ndim - 1)
    top = lax.slice_in_dim(lu, 0, k, axis=lu.ndim - 2)
    return tril(left, -1) + jnp.eye(rows, k, dtype=lu.dtype), triu(top)


@table.lowers(aten.linalg_lu.default)
def linalg_lu(A: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    lu, _, permutation = lu_factored(A)
    return _permutation_matrix(permutation, A.dtype), *_lower_and_upper(lu)


@table.lowers(aten.lu_unpack.default)
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    """A result that is not asked for is an empty vector."""
    nothing = lax.full((0,), 0, LU_data.dtype)
    p, lower, upper = nothing, nothing, nothing
    if unpack_pivots:
        p = _permutation_matrix(permutation_of(LU_pivots, LU_data.shape[-2]), LU_data.dtype)
    if unpack_data:
        lower, upper = _lower_and_upper(LU_data)
    return p, lower, upper


@table.lowers(aten.linalg_qr.default)
def linalg_qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    """The mode "r" leaves Q out: it is then an empty vector."""
    rows, columns = A.shape[-2:]
    if not A.size:
        k = rows if mode == "complete" else min(rows, columns)
        q = jnp.broadcast_to(jnp.eye(rows, k, dtype=A.dtype), (*A.shape[:-2], rows, k))
        r = lax.full((*A.shape[:-2], k, columns), 0, A.dtype)
    else:
        q, r = lax.linalg.qr(A, full_matrices=mode == "complete")
    return lax.full((0,), 0, A.dtype) if mode == "r" else q, r


@table.lowers(aten.geqrf.default)
def geqrf(self: Array) -> tuple[Array, Array]:
    """R on and above the diagonal, and below it the vectors of the reflections that make Q."""
    if not self.size:
        return self, lax.full((*self.shape[:-2], min(self.shape[-2:])), 0, self.dtype)
    packed, tau = jnp.linalg.qr(self, mode="raw")
    return transposed(packed), tau


@table.lowers(aten.linalg_householder_product.default)
def linalg_householder_product(input: Array, tau: Array) -> Array:
    if not input.size or not tau.size:
        eye = jnp.eye(*input.shape[-2:], dtype=input.dtype)
        return jnp.broadcast_to(eye, input.shape)
    return lax.linalg.householder_product(input, tau)


@table.lowers(aten.ormqr.default)
def ormqr(
    self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False
) -> Array:
    """`input3` multiplied by the square Q that reflections `self` and their factors `input2` make."""
    n = self.shape[-2]
    config = [*[(0, 0, 0)] * (self.ndim - 1), (0, n - self.shape[-1], 0)]
    square = lax.pad(self, self.dtype.type(0), config)
    q = linalg_householder_product(square, input2)
    q = adjoint(q) if transpose else q
    highest = lax.Precision.HIGHEST
    return (
        jnp.matmul(q, input3, precision=highest)
        if left
        else jnp.matmul(input3, q, precision=highest)
    )


@table.lowers(aten._linalg_svd.default)
def linalg_svd(
    A: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array, Array, Array]:
    """Without `compute_uv` the vectors are empty. XLA has one algorithm: `driver` is not heeded."""
    nothing = lax.full((0,), 0, A.dtype)
    *batch, rows, columns = A.shape
    k = min(rows, columns)
    if not A.size:
        u = identity(rows, A)[..., :, : rows if full_matrices else k]
        vh = identity(columns, A)[..., : columns if full_matrices else k, :]
        values = lax.full((*batch, k), 0, real_dtype(A))
        return (u, values, vh) if compute_uv else (nothing, values, nothing)
    A = with_nan_for_infinities(A)
    if not compute_uv:
        return nothing, lax.linalg.svd(A, compute_uv=False), nothing
    u, values, vh = lax.linalg.svd(A, full_matrices=full_matrices)
    return u, values, vh
