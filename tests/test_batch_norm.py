"""Batch norm in half precision trains: its statistics are saved in float32, and its backward takes them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_gradients_are_near_those_in_float64(weights: torch.dtype, training: bool) -> None:
    torch.manual_seed(0)
    on_device = nn.BatchNorm1d(3, dtype=weights).train(training)
    exact = copy.deepcopy(on_device).double()
    on_device.to("pjrt")
    x, grad = torch.randn(2, 16, 3, dtype=torch.bfloat16)
    ours, theirs = x.to("pjrt").requires_grad_(), x.double().requires_grad_()

    y = on_device(ours)
    y.backward(grad.to("pjrt"))
    exact(theirs).backward(grad.double())

    assert y.dtype == torch.bfloat16
    assert (ours.grad.dtype, on_device.weight.grad.dtype) == (torch.bfloat16, weights)
    pairs = ((ours.grad, theirs.grad), (on_device.weight.grad, exact.weight.grad))
    for actual, expected in pairs:
        error = (actual.cpu().double() - expected).abs().max()
        assert error < 2**-7 * max(1, expected.abs().max())
