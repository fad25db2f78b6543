"""The backward of attention with its products in an order that the CPU's library knows.

Two of them sum over the rows of both factors. With the wide one, of scores, first, XLA's CPU compiler
gives them to a routine that it knows nothing faster for; with it second they are taken by the library that
takes the others, and the result, which is narrow, is transposed.
"""

from __future__ import annotations

from functools import partial

import jax
import torch
from jax import lax

from torch_pjrt.lowering import attention
from torch_pjrt.lowering.table import LoweringTable

Array = jax.Array

table = LoweringTable("CPU")


def over_rows(x: Array, y: Array) -> Array:
    """The barrier keeps XLA from turning the product round again."""
    turned = lax.optimization_barrier(attention.over_rows(y, x))
    return lax.transpose(turned, (0, 1, 3, 2))


table.add(
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    partial(attention.scaled_dot_product_attention_backward, over_rows=over_rows),
    static=("dropout_p",),
)
