"""Fake quantization that observes: with a range for each channel, its first call makes room for them."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record

OPERATOR = aten._fused_moving_avg_obs_fq_helper.default


def fused_moving_average(
    self: torch.Tensor,
    observer_on: torch.Tensor,
    fake_quant_on: torch.Tensor,
    running_min: torch.Tensor,
    running_max: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The numbers, rounded, and which are within. Ranges, scales and zeros are written to."""
    state = running_min, running_max, scale, zero_point
    if per_row_fake_quant and not running_min.numel():
        for tensor, value in zip(state, (math.inf, -math.inf, 1, 0), strict=True):
            tensor.resize_(self.shape[ch_axis]).fill_(value)
    rest = averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant
    return record.call(OPERATOR, (self, observer_on, fake_quant_on, *state, *rest), {})


KERNELS: dict[Any, Any] = {OPERATOR: fused_moving_average}
