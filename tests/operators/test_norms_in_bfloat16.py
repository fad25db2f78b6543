"""Norms in half precision train, as exactly as on CPU: it saves statistics in the dtype of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

#   a norm of 4 channels, of a dtype
NORMS: dict[str, Callable[[torch.dtype], nn.Module]] = {
    "BatchNorm1d": lambda dtype: nn.BatchNorm1d(4, dtype=dtype),
    "BatchNorm1d in eval": lambda dtype: nn.BatchNorm1d(4, dtype=dtype).eval(),
    "GroupNorm": lambda dtype: nn.GroupNorm(2, 4, dtype=dtype),
    "LayerNorm": lambda dtype: nn.LayerNorm(4, dtype=dtype),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_gradients_are_near_those_in_float64(weights: torch.dtype, norm: str) -> None:
    torch.manual_seed(0)
    on_device: Any = NORMS[norm](weights)
    on_cpu, exact = copy.deepcopy(on_device), copy.deepcopy(on_device).double()
    on_device.to("pjrt")
    x, grad = torch.randn(2, 16, 4, dtype=torch.bfloat16)
    leaves = (x.to("pjrt"), x.clone(), x.double())
    ours, cpus, theirs = (leaf.requires_grad_() for leaf in leaves)

    y = on_device(ours)
    y.backward(grad.to("pjrt"))
    on_cpu(cpus).backward(grad)
    exact(theirs).backward(grad.double())

    assert y.dtype == torch.bfloat16
    assert (ours.grad.dtype, on_device.weight.grad.dtype) == (torch.bfloat16, weights)
    triples: Any = (
        (ours.grad, cpus.grad, theirs.grad),
        (on_device.weight.grad, on_cpu.weight.grad, exact.weight.grad),
    )
    for actual, cpu, expected in triples:
        error, cpu_error = ((g.cpu().double() - expected).abs().max() for g in (actual, cpu))
        assert error < max(2**-7 * max(1, expected.abs().max()), 1.01 * cpu_error)
