"""Bags of embeddings take indices and offsets of any dtypes that the CPU takes, gradients included."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from sides import difference, on_both

INDICES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
OFFSETS = (torch.int32, torch.int64)
HOW: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "weighted": {"mode": "sum", "per_sample_weights": torch.tensor([1.0, 2.0, 3.0])},
    "mean without a row": {"mode": "mean", "padding_idx": 0},
    "max": {"mode": "max"},
}


def bags(device: str, how: dict[str, Any], indices: torch.dtype, offsets: torch.dtype) -> Any:
    rows = torch.linspace(-1, 2, 24).reshape(4, 6).to(device).requires_grad_()
    how = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in how.items()}
    weights = how.get("per_sample_weights")
    leaves = [rows] if weights is None else [rows, weights.requires_grad_()]
    positions = torch.tensor([0, 2, 1]).to(indices).to(device)
    starts = torch.tensor([0, 2], dtype=offsets, device=device)
    y = F.embedding_bag(positions, rows, starts, **how)
    start = torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(device)
    return {"y": y, "gradients": torch.autograd.grad(y, leaves, start)}


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize("name", HOW)
def test_any_two_dtypes_that_the_cpu_takes(name: str) -> None:
    cases = []
    for pair in itertools.product(INDICES, OFFSETS):
        cases.append(on_both(str(pair), lambda d, p=pair: bags(d, HOW[name], *p)))

    assert sum(case.cpu.error is None for case in cases) >= 4
    found = [f"{case.name}: {line}" for case in cases if (line := difference(case))]
    assert not found, "\n".join(found)
