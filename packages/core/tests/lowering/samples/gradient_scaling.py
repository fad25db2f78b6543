"""Samples for lowering/gradient_scaling.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

unscale = aten._amp_foreach_non_finite_check_and_unscale.default
update = aten._amp_update_scale.default
INF, NAN = float("inf"), float("nan")
ZERO, ONE = torch.tensor(0.0), torch.tensor(1.0)
QUARTER = torch.tensor(0.25)


def gradients(*values: float) -> list[torch.Tensor]:
    return [torch.tensor([0.5, -3.0]), torch.tensor([[v] for v in values])]


def count(steps: int) -> torch.Tensor:
    return torch.tensor(steps, dtype=torch.int32)


SAMPLES: list[Sample] = [
    sample(unscale, gradients(1.0, 2.0), ZERO, QUARTER),
    sample(unscale, gradients(1.0, INF), ZERO, QUARTER),
    sample(unscale, gradients(NAN), ZERO, QUARTER),
    sample(unscale, gradients(1.0), ONE, QUARTER),
    sample(unscale, [torch.tensor([3.0, 60000.0]).half()], torch.tensor([0.0]), QUARTER),
    sample(unscale, [torch.tensor([3.0, -5.0]).bfloat16()], ZERO, torch.tensor([0.1])),
    sample(update, torch.tensor(8.0), count(3), ZERO, 2.0, 0.5, 4),
    sample(update, torch.tensor(8.0), count(2), ZERO, 2.0, 0.5, 4),
    sample(update, torch.tensor(8.0), count(3), ONE, 2.0, 0.5, 4),
    sample(update, torch.tensor([3e38]), count(3).reshape(1), ZERO.reshape(1), 2.0, 0.5, 4),
]
