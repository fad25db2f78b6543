"""Connectionist temporal classification: PyTorch passes the lengths as numbers, the rules want tensors.

With tensors a batch of other lengths is the same program. Labels that lie one after the other are put into
rows here, as wide as the longest, for only here their lengths are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.cpu_errors import check_small

Lengths = Sequence[int]


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, ...]:
    given = (log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    _check(log_probs, targets, input_lengths, target_lengths, given)
    arguments = _tensors(targets, input_lengths, target_lengths)
    call = (log_probs, *arguments, blank, zero_infinity)
    return record.call(aten._ctc_loss.Tensor, call, {})


def _ctc_loss_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    arguments = _tensors(targets, input_lengths, target_lengths)
    call = (grad, log_probs, *arguments, neg_log_likelihood, log_alpha, blank, zero_infinity)
    return record.call(aten._ctc_loss_backward.Tensor, call, {})


def _check(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    given: tuple[Any, ...],
) -> None:
    """Raise what PyTorch raises for such lengths; lengths that fit cost nothing more."""
    width = targets.shape[1] if targets.ndim == 2 else sum(target_lengths)
    fits = (
        log_probs.ndim == 3
        and log_probs.dtype in (torch.float32, torch.float64)
        and len(input_lengths) == len(target_lengths) == log_probs.shape[1] > 0
        and all(0 <= n <= log_probs.shape[0] for n in input_lengths)
        and all(0 <= n <= width for n in target_lengths)
        and (targets.ndim == 2 or (targets.ndim == 1 and len(targets) == width))
        and 0 <= given[4] < log_probs.shape[2]
    )
    if not fits:
        check_small(aten._ctc_loss.default, given, {})


def _tensors(
    targets: torch.Tensor, input_lengths: Lengths, target_lengths: Lengths
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of labels, and both lengths, on the device."""
    longest = max(target_lengths, default=0)
    inputs = torch.tensor(input_lengths, device="cpu")
    lengths = torch.tensor(target_lengths, device="cpu")
    if targets.ndim == 1:
        positions = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(longest, device="cpu")
        positions = positions.clamp(max=max(len(targets) - 1, 0))
        rows = targets[positions.to(targets.device)] if len(targets) else positions.to(targets)
    else:
        rows = targets[:, :longest]
    return rows, inputs.to(targets.device), lengths.to(targets.device)


KERNELS: dict[Any, Any] = {
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss_backward.default: _ctc_loss_backward,
}
