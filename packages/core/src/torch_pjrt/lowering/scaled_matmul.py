"""Lowerings of products of float8 matrices, each with scales that give its numbers their size.

What every rule here keeps:
    scales       float32, one for the whole matrix or one for each row of the first and column of the second.
    sums         run in float32, are scaled and rounded once, after the addition of `bias`.
    products     GPUs multiply float8 by itself; TPUs take it as bfloat16 and CPUs as float32: both are exact.
    out_dtype    None stands for the dtype of the first matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.promote import as_dtype
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float

Array = jax.Array

table = LoweringTable("scaled_matmul")

_FLOAT32, _BFLOAT16 = np.dtype(np.float32), np.dtype(jnp.bfloat16)


def _product(x: Array, y: Array) -> Array:
    return lax.dot(x, y, preferred_element_type=_FLOAT32)


def _product_of(dtype: np.dtype) -> Callable[[Array, Array], Array]:
    return lambda x, y: _product(as_dtype(x, dtype), as_dtype(y, dtype))


def _spread(scale: Array) -> Array:
    """One number as 0-d; a column or a row as it is."""
    return lax.reshape(scale, ()) if scale.size == 1 else scale


@table.lowers(aten._scaled_mm.default)
def scaled_mm(
    self: Float[Array, "rows inner"],
    mat2: Float[Array, "inner columns"],
    scale_a: Float[Array, ""] | Float[Array, "#rows 1"] | Float[Array, "#rows"],
    scale_b: Float[Array, ""] | Float[Array, " 1 #columns"] | Float[Array, "#columns"],
    bias: Float[Array, " columns"] | None = None,
    scale_result: Float[Array, ""] | Float[Array, " 1"] | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Float[Array, "rows columns"]:
    """`scale_result` divides float8 results, and only those, as on the CPU."""
    dtype = self.dtype if out_dtype is None else dtypes.to_jax(out_dtype)
    product = lax.platform_dependent(
        self, mat2, cuda=_product, tpu=_product_of(_BFLOAT16), default=_product_of(_FLOAT32)
    )
    result = product * _spread(scale_a) * _spread(scale_b)
    if bias is not None:
        result = result + as_dtype(bias, _FLOAT32)
    if scale_result is not None and dtype.itemsize == 1:
        result = result / _spread(scale_result)
    return as_dtype(result, dtype)


@table.lowers(aten._scaled_mm_v2.default)
def scaled_mm_v2(
    self: Float[Array, "rows inner"],
    mat2: Float[Array, "inner columns"],
    scale_a: Sequence[Array],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Array],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Float[Array, " columns"] | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Float[Array, "rows columns"]:
    """The recipes are those of `scaled_mm`: PyTorch refuses others before, as on the CPU."""
    return scaled_mm(self, mat2, scale_a[0], scale_b[0], bias, None, out_dtype)
