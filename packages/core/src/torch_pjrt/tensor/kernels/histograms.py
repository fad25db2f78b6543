"""Histograms of integers: the CPU refuses them, other accelerators count them, and models rely on that."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record


def histc(self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Counts of the dtype of `self`, as on CUDA."""
    if self.dtype.is_floating_point or self.dtype.is_complex or self.dtype is torch.bool:
        return record.call(aten.histc.default, (self, bins, min, max), {})
    return aten.histc.default(self.double(), bins, min, max).to(self.dtype)


KERNELS: dict[Any, Any] = {aten.histc.default: histc}
