"""Rules that replace the core's on SAMPLE."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torch_pjrt.plugin import LoweringTable, aten

table = LoweringTable("sample")


@table.lowers(aten.relu.default)
def relu(self: jax.Array) -> jax.Array:
    """As the core's, in a scope of our own: XLA's text of a program shows which rule made it."""
    with jax.named_scope("sample_relu"):
        return jnp.where(self <= 0, jnp.zeros_like(self), self)
