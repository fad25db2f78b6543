"""Convolutions of no channels or no images give what they give on the CPU, with gradients."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sides import difference, on_both

#   input channels, output channels, images
SIZES = ((0, 3, 2), (2, 3, 0))


def convolved(module: nn.Module, shape: tuple[int, ...], device: str) -> dict[str, Any]:
    module = copy.deepcopy(module).to(device)
    x = torch.ones(shape, device=device, requires_grad=True)
    y = module(x)
    y.sum().backward()
    return {"y": y, "x": x.grad, "parameters": [p.grad for p in module.parameters()]}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_a_convolution_of_nothing_is_that_of_the_cpu(kind: Any) -> None:
    dims = (nn.Conv1d, nn.Conv2d, nn.Conv3d).index(kind) + 1
    for inputs, outputs, images in SIZES:
        work = partial(convolved, kind(inputs, outputs, 2), (images, inputs, *(4,) * dims))
        case = on_both("", work)

        assert case.cpu.error is None
        assert difference(case) is None
