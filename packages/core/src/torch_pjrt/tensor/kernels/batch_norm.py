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
    op = aten._native_batch_norm_legit.default
    statistics = running_mean, running_var
    results = record.call(op, (input, weight, bias, *statistics, training, momentum, eps), {})
    if training:
        return results
    return results[0], results[1].new_empty(0), results[2].new_empty(0)


KERNELS: dict[Any, Any] = {
    aten.native_batch_norm.default: native_batch_norm,
    aten._native_batch_norm_legit.default: _native_batch_norm_legit,
}
