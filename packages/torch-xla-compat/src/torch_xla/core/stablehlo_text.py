"""The program that would compute some tensors, as StableHLO."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import torch_pjrt
from torch_pjrt.errors import SettingError


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """The program that would compute `tensors`, which are pending, as text. `SettingError` without
    tensors."""
    if not tensors:
        raise SettingError(
            "Nothing was said to be computed.",
            saw=f"get_stablehlo({tensors!r})",
            expected="the tensors whose program is wanted",
        )
    return torch_pjrt.to_stablehlo(tensors)
