"""`torch.jit.trace` sees convolutions, as on CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize(
    "layer", [nn.Conv2d(1, 2, 2), nn.ConvTranspose2d(1, 2, 2), nn.Conv2d(1, 2, 3, padding="same")]
)
def test_a_traced_convolution_computes_from_its_inputs(layer: nn.Module) -> None:
    model = nn.Sequential(layer, nn.ReLU()).to("pjrt")
    x = torch.rand(1, 1, 4, 4, device="pjrt")

    traced: Any = torch.jit.trace(model, x)
    y = traced(2 * x)
    y.sum().backward()

    torch.testing.assert_close(y, model(2 * x))
    assert "_convolution" in str(traced.inlined_graph)
    assert all(p.grad is not None for p in model.parameters())
