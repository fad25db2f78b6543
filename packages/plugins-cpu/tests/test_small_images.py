"""Convolutions of images smaller than the kernel: PyTorch's values and gradients, operands not swapped."""

from __future__ import annotations

import itertools

import pytest
import torch

import torch_pjrt

SIZES = [
    (size, kernel, stride, padding, dilation, groups)
    for size, kernel, stride, padding, dilation, groups in itertools.product(
        (1, 2, 4), (3,), (1, 2), (1, 2), (1, 2), (1, 2)
    )
    if size + 2 * padding > dilation * (kernel - 1)
]


@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "dilation", "groups"), SIZES)
def test_values_and_gradients_are_those_of_the_cpu(
    size: int, kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, size, size, dtype=torch.float64)
    weight = torch.randn(6, 4 // groups, kernel, kernel, dtype=torch.float64)
    results = []
    for device in ("cpu", "pjrt"):
        leaves = [t.to(device).requires_grad_() for t in (x, weight)]
        y = torch.conv2d(leaves[0], leaves[1], None, stride, padding, dilation, groups)
        gradients = torch.autograd.grad(y.square().sum(), leaves)
        results.append([t.detach().cpu() for t in (y, *gradients)])

    for ours, theirs in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("output_padding", [0, 1])
def test_transposed_convolution_of_a_small_image_is_that_of_the_cpu(output_padding: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 6, 2, 2), torch.randn(6, 4, 3, 3)
    arguments = (None, 2, 1, output_padding)

    ours = torch.conv_transpose2d(x.to("pjrt"), weight.to("pjrt"), *arguments)

    torch.testing.assert_close(ours.cpu(), torch.conv_transpose2d(x, weight, *arguments))


def test_images_stay_the_input_of_the_convolution() -> None:
    x, weight = torch.randn(64, 8, 2, 2).to("pjrt"), torch.randn(8, 8, 3, 3).to("pjrt")

    text = torch_pjrt.to_stablehlo(torch.conv2d(x, weight, padding=1))

    assert "stablehlo.pad" in text
    assert "optimization_barrier" in text
