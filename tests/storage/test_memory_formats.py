"""Results lie in memory as on CPU: channels last stays channels last, through every kind of operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from as_on_cpu import assert_as_on_cpu
from this_cpu import CONVOLVES_BFLOAT16

Tensor = torch.Tensor
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def image(device: str, batch: int = 2) -> Tensor:
    """Small integers, so that sums are exact."""
    flat = torch.arange(batch * 4 * 36, dtype=torch.float32) % 7 - 3
    return flat.reshape(batch, 4, 6, 6).to(device).to(memory_format=torch.channels_last)


def ones(x: Tensor, *shape: int) -> Tensor:
    return torch.ones(shape, device=x.device)


OPERATORS: dict[str, Callable[[Tensor], object]] = {
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
    "add a contiguous one": lambda x: x + x.contiguous(),
    "add to a contiguous one": lambda x: x.contiguous() + x,
    "add_": lambda x: x.add_(x.contiguous()),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, ones(x, 4), ones(x, 4) * 4, eps=0),
    "cat": lambda x: torch.cat([x, x], 1),
    "clone": lambda x: x.clone(),
    "clone contiguous": lambda x: x.clone(memory_format=torch.contiguous_format),
    "contiguous": lambda x: x.contiguous(),
    "conv2d": lambda x: F.conv2d(x, ones(x, 4, 4, 3, 3)),
    "conv2d of one output": lambda x: F.conv2d(x, ones(x, 1, 4, 3, 3)),
    "conv2d of one input": lambda x: F.conv2d(x[:, :1], ones(x, 4, 1, 3, 3)),
    "conv2d grouped": lambda x: F.conv2d(x, ones(x, 4, 1, 3, 3), groups=4),
    "conv2d without a batch": lambda x: F.conv2d(x[0], ones(x, 4, 4, 3, 3)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, ones(x, 4, 4, 3, 3)),
    "copy_": lambda x: x.contiguous().copy_(x),
    "double": lambda x: x.double(),
    "empty_like": lambda x: torch.empty_like(x).zero_(),
    "flatten": lambda x: x.flatten(1),
    "index": lambda x: x[torch.tensor([1, 0])],
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "expanded halves and others": lambda x: ones(x).half().expand(x.shape) * x.half(),
    "expanded halves and a row": lambda x: ones(x).half().expand(x.shape) * ones(x, 1, 6).half(),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "max_pool2d": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "mean": lambda x: x.sum((2, 3), keepdim=True),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "pad reflecting": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "relu": F.relu,
    "reshape": lambda x: x.reshape(2, 4, 36),
    "roll": lambda x: x.roll(1, 2),
    "row and column": lambda x: (x[0], x[..., 0]),
    "sort": lambda x: x.sort(1),
    "to contiguous": lambda x: x.to(torch.float64, memory_format=torch.contiguous_format),
    "where": lambda x: torch.where(x > 0, x, 0.0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_result_lies_in_memory_as_on_cpu(name: str) -> None:
    assert_as_on_cpu(lambda device: OPERATORS[name](image(device)))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_of_permuted_dims_lies_as_on_cpu(
    order: tuple[int, ...], dropout: float, is_causal: bool
) -> None:
    def attended(device: str) -> tuple[int, ...]:
        x = torch.ones([(2, 3, 4, 8)[i] for i in order], device=device)
        x = x.permute([order.index(i) for i in range(4)])
        y = F.scaled_dot_product_attention(x, x, x, dropout_p=dropout, is_causal=is_causal)
        return y.stride()

    assert attended("pjrt") == attended("cpu")


@pytest.mark.parametrize(
    "order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2, 3), (3, 0, 1, 2)], ids=str
)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_batch_norm_of_permuted_dims_is_contiguous_as_on_cpu(
    order: tuple[int, ...], training: bool
) -> None:
    def normed(device: str) -> tuple[Tensor, Tensor]:
        sizes = (2, 3, 4, 5)[: len(order)]
        x = torch.linspace(-1, 1, math.prod(sizes)).reshape(sizes)
        x = x.to(device).permute(order).requires_grad_()
        mean, var = torch.zeros(x.shape[1], device=device), torch.ones(x.shape[1], device=device)
        y = F.batch_norm(x, mean, var, training=training)
        return y, torch.autograd.grad(y.sin().sum(), x)[0]

    for ours, theirs in zip(normed("pjrt"), normed("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, check_device=False, check_stride=True)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_convolution_is_channels_last_where_it_is_so_on_cpu(dims: int, dtype: torch.dtype) -> None:
    if dims == 3 and dtype is torch.bfloat16 and not CONVOLVES_BFLOAT16:
        pytest.skip("torch.ops.mkldnn._is_mkldnn_bf16_supported() is false on this CPU")

    def strides(device: str) -> list[object]:
        found: list[object] = []
        for input_is_last, weight_is_last in product((False, True), (False, True)):
            x = torch.ones(2, 4, *[5] * dims, dtype=dtype).to(device)
            weight = torch.ones(3, 4, *[2] * dims, dtype=dtype).to(device)
            x = x.to(memory_format=LAST[dims]) if input_is_last else x
            weight = weight.to(memory_format=LAST[dims]) if weight_is_last else weight
            convolution = F.conv2d if dims == 2 else F.conv3d
            found.append(convolution(x, weight).stride())
        return found

    assert_as_on_cpu(strides)


def test_training_step_of_a_channels_last_module_gives_gradients_as_on_cpu() -> None:
    def step(device: str) -> object:
        net: Any = torch.nn.Sequential(
            torch.nn.Conv2d(4, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 1, bias=False)
        )
        with torch.no_grad():
            for p in net.parameters():
                p.copy_((torch.arange(p.numel()) % 3 - 1.0).reshape(p.shape))
        net = net.to(device).to(memory_format=torch.channels_last)
        y = net(image(device))
        y.sum().backward()
        return [y.detach(), *[p.grad for p in net.parameters()]]

    assert_as_on_cpu(step)


def test_new_empty_strided_keeps_strides_that_leave_gaps():
    x = torch.ones(2, device="pjrt").new_empty_strided((2, 3), (1, 4))

    assert (x.shape, x.stride(), x.dtype) == ((2, 3), (1, 4), torch.float32)


@pytest.mark.parametrize(
    "shape, strides",
    [
        ((2, 1, 8, 8), (64, 1, 8, 1)),
        ((2, 3, 1, 1), (3, 1, 3, 3)),
        ((1, 4), (1, 1)),
        ((3, 0), (1, 3)),
    ],
    ids=str,
)
def test_moving_keeps_the_strides_of_dims_of_one_element(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Those of channels last among them: by them a convolution chooses the format of its output."""
    here = torch.arange(192.0).as_strided(shape, strides)
    there = here.to("pjrt")
    assert there.stride() == strides
    assert there.cpu().stride() == strides
    assert torch.equal(there.cpu(), here)
