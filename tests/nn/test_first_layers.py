"""The first layer of a model has an input that needs no gradient: its parameters get theirs all the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(4, 3), (5, 4)),
    "bilinear": (nn.Bilinear(4, 4, 3), (5, 4)),
    "convolution": (nn.Conv2d(4, 3, 2), (5, 4, 6, 6)),
    "transposed convolution": (nn.ConvTranspose1d(4, 3, 2), (5, 4, 6)),
    "batch norm": (nn.BatchNorm1d(4), (5, 4)),
    "batch norm of images": (nn.BatchNorm2d(4), (5, 4, 3, 3)),
    "batch norm in evaluation": (nn.BatchNorm1d(4).eval(), (5, 4)),
    "batch norm without statistics": (nn.BatchNorm1d(4, track_running_stats=False), (5, 4)),
    "instance norm": (nn.InstanceNorm1d(4, affine=True), (5, 4, 6)),
    "group norm": (nn.GroupNorm(2, 4), (5, 4, 6)),
    "layer norm": (nn.LayerNorm(4), (5, 4)),
    "RMS norm": (nn.RMSNorm(4), (5, 4)),
    "PReLU": (nn.PReLU(4), (5, 4)),
    "LSTM": (nn.LSTM(4, 3), (5, 2, 4)),
    "GRU": (nn.GRU(4, 3), (5, 2, 4)),
    "attention": (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), (5, 2, 4)),
}


def gradients(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    result = layer(x, x) if isinstance(layer, nn.Bilinear) else layer(x)
    first = result[0] if isinstance(result, tuple) else result
    (first * torch.arange(first.numel(), device=x.device).reshape(first.shape)).sum().backward()
    return [p.grad.cpu() for p in layer.parameters() if p.grad is not None]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", LAYERS)
def test_parameters_of_a_first_layer_get_their_gradients(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    x = torch.randn(shape)

    here = gradients(copy.deepcopy(layer).to("pjrt"), x.to("pjrt"))
    there = gradients(copy.deepcopy(layer), x)

    assert len(here) == len(there) > 0
    for ours, expected in zip(here, there, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
