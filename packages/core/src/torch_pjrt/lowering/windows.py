"""Lowerings of window functions that PyTorch does not compose of simpler operators.

periodic  the window is the start of one that is longer by an element.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.promote import as_dtype, default_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("windows")


@table.lowers(aten.kaiser_window.default, aten.kaiser_window.periodic, aten.kaiser_window.beta)
def kaiser_window(
    window_length: int, periodic: bool = True, beta: Any = 12.0, *, dtype: torch.dtype | None = None
) -> Array:
    """A modified Bessel function of half an ellipse, divided by its largest value."""
    result = dtypes.to_jax(dtype or default_dtype())
    wide = opmath(result)
    if window_length <= 1:
        return lax.full((window_length,), 1, result)
    last = window_length if periodic else window_length - 1
    position = as_dtype(lax.iota(np.dtype(np.int32), window_length), wide)
    across = position * (2 / last) - 1
    width = as_dtype(beta, wide)
    height = width * lax.sqrt(lax.max(1 - across * across, lax.full_like(across, 0)))
    # Scaled by exp(-x) both: their ratio does not overflow.
    ratio = lax.bessel_i0e(height) / lax.bessel_i0e(lax.abs(width))
    return as_dtype(ratio * lax.exp(lax.abs(height) - lax.abs(width)), result)
