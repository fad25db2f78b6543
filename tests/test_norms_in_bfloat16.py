"""Norms in half precision train: their statistics are saved in float32, and their backwards take them."""

from __future__ import annotations

import copy
from collections.abc import Callable

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
    on_device = NORMS[norm](weights)
    exact = copy.deepcopy(on_device).double()
    on_device.to("pjrt")
    x, grad = torch.randn(2, 16, 4, dtype=torch.bfloat16)
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
