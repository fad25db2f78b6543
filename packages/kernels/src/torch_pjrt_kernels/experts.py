"""The grouped product that `transformers` calls where PyTorch's own is not at hand, while exporting say."""

from __future__ import annotations

from types import ModuleType

import jax
import torch

from torch_pjrt.extend import after_import, lowers
from torch_pjrt.plugin import rules

Array = jax.Array
_MODULE = "transformers.integrations.moe"


def install() -> None:
    """Have a rule for it from when its module is imported."""
    after_import(_MODULE, _register)


def _register(module: ModuleType) -> None:
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        lowers(torch.ops.transformers.grouped_mm_fallback.default)(grouped_mm_fallback)


def grouped_mm_fallback(input: Array, weight: Array, offs: Array) -> Array:
    """Each row of `input`, (rows, k), times the weight of its group, (groups, k, n); `offs`: their ends."""
    return rules.grouped_mm(input, weight, offs.astype("int32"), groups=rules.Groups())
