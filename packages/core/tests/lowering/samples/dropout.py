"""Samples for lowering/dropout.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
mask = torch.rand(4, 5, generator=seed) < 0.5


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def dropped(x: torch.Tensor, p: float) -> Sample:
    """The mask keeps a share of `1 - p`, within five deviations, and the result follows it."""

    def compare(actual: Any, expected: Any) -> None:
        y, kept = actual
        assert (y.dtype, y.shape) == (expected[0].dtype, expected[0].shape)
        assert (kept.dtype, kept.shape) == (torch.bool, x.shape)
        slack = 5 * (p * (1 - p) / x.numel()) ** 0.5
        assert abs(kept.double().mean().item() - (1 - p)) < slack
        torch.testing.assert_close(y, x * kept / (1 - p))

    return Sample(
        aten.native_dropout.default, (x, p, True), why="values are random", compare=compare
    )


SAMPLES: list[Sample] = [
    dropped(normal(100, 100), 0.1),
    dropped(normal(100, 100), 0.75),
    dropped(normal(100, 100, dtype=torch.bfloat16), 0.5),
    sample(aten.native_dropout.default, normal(4, 5), 0.5, False),
    sample(aten.native_dropout.default, normal(4, 5), 0.0, True),
    sample(aten.native_dropout.default, normal(4, 5), 1.0, True),
    sample(aten.native_dropout_backward.default, normal(4, 5), mask, 2.0),
    sample(aten.native_dropout_backward.default, torch.arange(20).reshape(4, 5), mask, 2.0),
    sample(aten.native_dropout_backward.default, normal(4, 5, dtype=torch.bfloat16), mask, 4 / 3),
    sample(aten.native_dropout_backward.default, torch.full((4, 5), torch.nan), mask, 2.0),
]
