"""Batch normalization: its schema hides that it writes to the running statistics.

The functional overload returns them as results; here they are written back.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record

Optional = torch.Tensor | None


def native_batch_norm(
    input: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Output, and the mean and inverse standard deviation of the batch (empty in evaluation)."""
    if running_mean is None or running_var is None:
        return record.call(
            aten._native_batch_norm_legit.no_stats,
            (input, weight, bias, training, momentum, eps),
            {},
        )
    return _native_batch_norm_legit(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )


def _native_batch_norm_legit(
    input: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    statistics = running_mean, running_var
    if training:
        op = aten._native_batch_norm_legit.default
        return record.call(op, (input, weight, bias, *statistics, training, momentum, eps), {})
    # It reads the statistics and writes nothing: who else holds them, another thread say, does not matter.
    op = aten._native_batch_norm_legit_no_training.default
    output = record.call(op, (input, weight, bias, *statistics, momentum, eps), {})[0]
    return output, running_mean.new_empty(0), running_mean.new_empty(0)


KERNELS: dict[Any, Any] = {
    aten.native_batch_norm.default: native_batch_norm,
    aten._native_batch_norm_legit.default: _native_batch_norm_legit,
}
