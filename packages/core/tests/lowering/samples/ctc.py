"""Samples for lowering/ctc.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
TIMES, CLASSES = 10, 6

LABELS = torch.tensor([[1, 2, 2, 5], [3, 3, 3, 3], [4, 1, 0, 0], [5, 1, 2, 3]])
LENGTHS = torch.tensor([4, 3, 1, 0])
FEW = torch.tensor([10, 4, 7, 0])  # too few times for the second


def likelihoods(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(TIMES, len(LABELS), CLASSES, generator=seed, dtype=torch.float64)
    return x.log_softmax(2).to(dtype)


def same_loss(actual: Any, expected: Any) -> None:
    """The CPU leaves `log_alpha` uninitialised beyond what it reads: the full sample is compared."""
    torch.testing.assert_close(actual[0], expected[0])
    torch.testing.assert_close(actual[1][0], expected[1][0])


def rows(dtype: torch.dtype, labels: torch.Tensor, times: torch.Tensor, zero: bool) -> list[Sample]:
    x = likelihoods(dtype)
    forward, backward = aten._ctc_loss.Tensor, aten._ctc_loss_backward.Tensor
    loss, alpha = forward(x, labels, times, LENGTHS, 0, zero)
    # What the CPU leaves uninitialised may be anything; here it always is the worst.
    alpha[(torch.arange(alpha.shape[2]) > 2 * LENGTHS[:, None])[:, None].expand_as(alpha)] = (
        torch.nan
    )
    grad = torch.rand(len(loss), generator=seed, dtype=torch.float64).to(dtype)
    return [
        Sample(
            forward, (x, labels, times, LENGTHS, 0, zero),
            why="some of `log_alpha` is uninitialised", compare=same_loss,
        ),
        sample(backward, grad, x, labels, times, LENGTHS, loss, alpha, 0, zero),
    ]  # fmt: skip


def same_first(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual[0], expected[0])


packed = torch.cat([row[:n] for row, n in zip(LABELS, LENGTHS.tolist(), strict=True)])
full = torch.full((4,), TIMES)

SAMPLES: list[Sample] = [
    *rows(torch.float32, LABELS, full, False),
    *rows(torch.float32, LABELS, FEW, True),
    *rows(torch.float64, LABELS.int(), FEW, False),
    *rows(torch.float64, LABELS, full, True),
    Sample(
        aten._ctc_loss.Tensor,
        (likelihoods(torch.float32), packed, full, LENGTHS),
        why="a rule does not know how long the longest row is: `log_alpha` is wider",
        compare=same_first,
    ),
]
