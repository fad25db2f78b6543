"""Lowerings of matrix products, alone and added to something.

What every rule here keeps:
    sums         float16 and bfloat16 add up in float32 and are rounded once, after `alpha`, `beta`
                 and the addition.
    beta, alpha  weigh the addend and the product. A beta of 0 leaves the addend out altogether, so
                 that a nan in it does not show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.promote import as_dtype, opmath, promoted
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Int, Num, Shaped

Array = jax.Array
# What a product is added to: it is broadcast to the product's shape.
Addend: TypeAlias = "Num[Array, '#rows #columns'] | Num[Array, '#columns'] | Num[Array, '']"
BatchAddend: TypeAlias = """(
    Num[Array, '#batch #rows #columns']
    | Num[Array, '#rows #columns'] | Num[Array, '#columns'] | Num[Array, '']
)"""

table = LoweringTable("matmul")


def contracted(x: Array, y: Array, x_dim: int, y_dim: int, n_batch: int = 0) -> Array:
    """The product of `x` and `y` summed over one dim of each, in the dtype sums run in.

    The first `n_batch` dims of both are batch dims.
    """
    batch = tuple(range(n_batch))
    return lax.dot_general(
        x,
        y,
        (((x_dim,), (y_dim,)), (batch, batch)),
        preferred_element_type=opmath(x.dtype),
    )


def weighted(x: Array, weight: Any) -> Array:
    """`weight * x` for a Scalar `weight`, in the dtype of `x`."""
    if isinstance(weight, (bool, int, float, complex)) and weight == 1:
        return x
    return x * as_dtype(weight, x.dtype)


def _plus(addend: Array, product: Array, beta: Any, alpha: Any, dtype: np.dtype) -> Array:
    """`beta * addend + alpha * product`, rounded to `dtype`."""
    result = weighted(product, alpha)
    if isinstance(beta, (bool, int, float, complex)):
        if beta == 0:
            return lax.convert_element_type(result, dtype)
        term = weighted(as_dtype(addend, result.dtype), beta)
    else:
        scale = as_dtype(beta, result.dtype)
        term = scale * as_dtype(addend, result.dtype)
        term = lax.select(lax.broadcast(scale == 0, term.shape), lax.full_like(term, 0), term)
    if term.ndim < result.ndim:
        term = lax.expand_dims(term, range(result.ndim - term.ndim))
    return lax.convert_element_type(term + result, dtype)


@table.lowers(aten.mm.default)
def mm(
    self: Num[Array, "rows inner"], mat2: Num[Array, "inner columns"]
) -> Num[Array, "rows columns"]:
    return lax.dot(self, mat2)


@table.lowers(aten.mm.dtype)
def mm_dtype(
    self: Num[Array, "rows inner"], mat2: Num[Array, "inner columns"], out_dtype: torch.dtype
) -> Num[Array, "rows columns"]:
    return as_dtype(contracted(self, mat2, 1, 0), dtypes.to_jax(out_dtype))


@table.lowers(aten.bmm.dtype)
def bmm_dtype(
    self: Num[Array, "batch rows inner"],
    mat2: Num[Array, "batch inner columns"],
    out_dtype: torch.dtype,
) -> Num[Array, "batch rows columns"]:
    return as_dtype(contracted(self, mat2, 2, 1, n_batch=1), dtypes.to_jax(out_dtype))


@table.lowers(aten.addmm.dtype)
def addmm_dtype(
    self: Addend,
    mat1: Num[Array, "rows inner"],
    mat2: Num[Array, "inner columns"],
    out_dtype: torch.dtype,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Num[Array, "rows columns"]:
    return _plus(self, contracted(mat1, mat2, 1, 0), beta, alpha, dtypes.to_jax(out_dtype))


@table.lowers(aten.baddbmm.dtype)
def baddbmm_dtype(
    self: BatchAddend,
    batch1: Num[Array, "batch rows inner"],
    batch2: Num[Array, "batch inner columns"],
    out_dtype: torch.dtype,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Num[Array, "batch rows columns"]:
    product = contracted(batch1, batch2, 2, 1, n_batch=1)
    return _plus(self, product, beta, alpha, dtypes.to_jax(out_dtype))


@table.lowers(aten._int_mm.default)
def int_mm(
    self: Int[Array, "rows inner"], mat2: Int[Array, "inner columns"]
) -> Int[Array, "rows columns"]:
    """int8 times int8, added up in int32."""
    return lax.dot(self, mat2, preferred_element_type=np.dtype(np.int32))


@table.lowers(aten.bmm.default)
def bmm(
    self: Num[Array, "batch rows inner"], mat2: Num[Array, "batch inner columns"]
) -> Num[Array, "batch rows columns"]:
    return lax.dot_general(self, mat2, (((2,), (1,)), ((0,), (0,))))


@table.lowers(aten.addmm.default)
def addmm(
    self: Addend,
    mat1: Num[Array, "rows inner"],
    mat2: Num[Array, "inner columns"],
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Num[Array, "rows columns"]:
    return _plus(self, contracted(mat1, mat2, 1, 0), beta, alpha, mat1.dtype)


@table.lowers(aten._addmm_activation.default)
def _addmm_activation(
    self: Addend,
    mat1: Num[Array, "rows inner"],
    mat2: Num[Array, "inner columns"],
    *,
    beta: Any = 1,
    alpha: Any = 1,
    use_gelu: bool = False,
) -> Num[Array, "rows columns"]:
    """relu of `addmm`, or gelu in its exact form, as on the CPU."""
    wide = opmath(mat1.dtype)
    x = _plus(self, contracted(mat1, mat2, 1, 0), beta, alpha, wide)
    x = jax.nn.gelu(x, approximate=False) if use_gelu else lax.max(x, lax.full_like(x, 0))
    return lax.convert_element_type(x, mat1.dtype)


@table.lowers(aten.baddbmm.default)
def baddbmm(
    self: BatchAddend,
    batch1: Num[Array, "batch rows inner"],
    batch2: Num[Array, "batch inner columns"],
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Num[Array, "batch rows columns"]:
    product = contracted(batch1, batch2, 2, 1, n_batch=1)
    return _plus(self, product, beta, alpha, batch1.dtype)


@table.lowers(aten.addbmm.default)
def addbmm(
    self: Addend,
    batch1: Num[Array, "batch rows inner"],
    batch2: Num[Array, "batch inner columns"],
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Num[Array, "rows columns"]:
    """The products of a batch are added up: the sum runs over the batch dim and the inner one."""
    product = lax.dot_general(
        batch1,
        batch2,
        (((0, 2), (0, 1)), ((), ())),
        preferred_element_type=opmath(batch1.dtype),
    )
    return _plus(self, product, beta, alpha, batch1.dtype)


@table.lowers(aten.addmv.default)
def addmv(
    self: Num[Array, "#rows"] | Num[Array, ""],
    mat: Num[Array, "rows inner"],
    vec: Num[Array, " inner"],
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Num[Array, " rows"]:
    return _plus(self, contracted(mat, vec, 1, 0), beta, alpha, mat.dtype)


@table.lowers(aten.mv.default)
def mv(self: Num[Array, "rows inner"], vec: Num[Array, " inner"]) -> Num[Array, " rows"]:
    return lax.dot(self, vec)


@table.lowers(aten.dot.default)
def dot(self: Num[Array, " inner"], tensor: Num[Array, " inner"]) -> Num[Array, ""]:
    return lax.dot(self, tensor)


@table.lowers(aten.vdot.default)
def vdot(self: Num[Array, " inner"], other: Num[Array, " inner"]) -> Num[Array, ""]:
    return lax.dot(lax.conj(self) if self.dtype.kind == "c" else self, other)


@table.lowers(aten.addr.default)
def addr(
    self: Shaped[Array, "#rows #columns"] | Shaped[Array, "#columns"] | Shaped[Array, ""],
    vec1: Shaped[Array, " rows"],
    vec2: Shaped[Array, " columns"],
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Shaped[Array, "rows columns"]:
    """`beta * self + alpha * outer(vec1, vec2)`, in the common dtype; of bools, or and and.

    The CPU rounds halves after each operation, unlike in the other products.
    """
    (x, column, row), dtype = promoted((self, vec1, vec2))
    column = lax.expand_dims(as_dtype(column, dtype), (1,))
    row = lax.expand_dims(as_dtype(row, dtype), (0,))
    if dtype == np.bool_:
        outer = column & row & as_dtype(alpha, dtype)
        return outer | (x & as_dtype(beta, dtype))
    return _plus(x, weighted(column, alpha) * row, beta, 1, dtype)
