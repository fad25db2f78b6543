"""Lowerings of what `torch.amp.GradScaler` calls, so that a float16 step reads nothing back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("gradient scaling")


@table.lowers(aten._amp_foreach_non_finite_check_and_unscale.default)
def unscale(self: list[Array], found_inf: Array, inv_scale: Array) -> tuple[Array, ...]:
    """Each gradient times `inv_scale`; `found_inf` is 1 if one of them was not finite."""
    results = []
    for x in self:
        found_inf = jnp.where(jnp.all(jnp.isfinite(x)), found_inf, 1)
        wide = as_dtype(x, opmath(x.dtype))
        results.append(as_dtype(wide * as_dtype(inv_scale, wide.dtype), x.dtype))
    return (*results, as_dtype(found_inf, np.dtype(np.float32)))


@table.lowers(aten._amp_update_scale.default)
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: Any,
    scale_backoff_factor: Any,
    growth_interval: int,
) -> tuple[Array, Array]:
    """The scale shrinks after an infinite gradient, and grows after `growth_interval` finite ones."""
    found = found_inf.reshape(self.shape) != 0
    steps = growth_tracker + 1
    is_due = steps == growth_interval
    grown = self * as_dtype(scale_growth_factor, self.dtype)
    grown = jnp.where(jnp.isfinite(grown), grown, self)
    shrunk = self * as_dtype(scale_backoff_factor, self.dtype)
    scale = jnp.where(found, shrunk, jnp.where(is_due.reshape(self.shape), grown, self))
    found = found.reshape(steps.shape)
    return scale, jnp.where(found | is_due, jnp.zeros_like(steps), steps)
