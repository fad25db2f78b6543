"""Long attention is computed in blocks once the package is installed, in each way in which programs run."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt

LENGTH, HEADS = 1024, 8
Tensors = list[torch.Tensor]


def inputs_of(device: str, length: int = LENGTH) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, HEADS, length, 8, generator=generator).to(device).requires_grad_()
        for _ in range(3)
    ]


def step(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **form: Any) -> Tensors:
    """The output and the gradients."""
    y = scaled_dot_product_attention(query, key, value, **form)
    return [y, *torch.autograd.grad(y.square().sum(), (query, key, value))]


def makes_all_scores(text: str) -> bool:
    """Whether a program has an array of all scores."""
    return re.search(rf"{LENGTH}x{LENGTH}x(f32|i1)", text) is not None


def assert_close(ours: Any, theirs: Any) -> None:
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def expected() -> Tensors:
    return step(*inputs_of("cpu"), is_causal=True)


def test_recorded_lazily(expected: Tensors) -> None:
    found = step(*inputs_of("pjrt"), is_causal=True)

    assert not makes_all_scores(torch_pjrt.to_stablehlo(found))
    assert_close(found, expected)


def test_short_sequences_are_computed_at_once() -> None:
    query, key, value = inputs_of("pjrt", 40)
    text = torch_pjrt.to_stablehlo([scaled_dot_product_attention(query, key, value)])

    assert "40x40xf32" in text


def test_captured(expected: Tensors) -> None:
    def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Tensors:
        return step(query, key, value, is_causal=True)

    captured = torch_pjrt.capture(causal)
    inputs = inputs_of("pjrt")

    found = [captured(*inputs) for _ in range(4)]

    assert_close(found[-1], expected)


@pytest.mark.slow
def test_compiled(expected: Tensors) -> None:
    @torch.compile(fullgraph=True)
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    inputs = inputs_of("pjrt")
    y = attend(*inputs)

    assert_close([y, *torch.autograd.grad(y.square().sum(), inputs)], expected)


@pytest.mark.slow
def test_rolled_layers() -> None:
    def layers(device: str) -> Tensors:
        x, *_ = inputs_of(device)
        y = x
        for _ in range(6):
            y = y + scaled_dot_product_attention(y, y, y, is_causal=True) / 8
        return [y, *torch.autograd.grad(y.square().mean(), (x,))]

    found = layers("pjrt")
    text = torch_pjrt.to_stablehlo(found)

    assert not makes_all_scores(text)
    assert_close(found, layers("cpu"))


def test_masks_of_bools_stay_bools_and_floats_get_gradients() -> None:
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(1, 1, LENGTH, LENGTH, generator=generator) > 0.3
    bias = torch.randn(1, HEADS, 1, LENGTH, generator=generator)

    def both(device: str) -> Tensors:
        q, k, v = inputs_of(device)
        added = bias.to(device).requires_grad_()
        y = scaled_dot_product_attention(q, k, v, attn_mask=added)
        gradients = torch.autograd.grad(y.square().sum(), (q, added))
        return [*step(q, k, v, attn_mask=seen.to(device)), *gradients]

    assert_close(both("pjrt"), both("cpu"))


def test_dropout_drops_the_same_weights_in_the_backward() -> None:
    """The output is the sum of a query's weights; the gradient of the values is what each key gets."""
    n = 2048
    query = torch.zeros(1, HEADS, n, 8, device="pjrt")
    value = torch.ones(1, HEADS, n, 1, device="pjrt").requires_grad_()
    y = scaled_dot_product_attention(query, query, value, dropout_p=0.5)
    rows = torch.randn(1, HEADS, n, 1, device="pjrt")

    (of_value,) = torch.autograd.grad(y, value, rows)

    torch.testing.assert_close((y * rows).sum().cpu(), of_value.sum().cpu(), rtol=1e-4, atol=1e-2)
    assert 0.4 < (y.detach().cpu() / 2).mean() < 0.6


def test_compiled_ahead_for_a_tpu_it_takes_no_memory_for_scores() -> None:
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")
    inputs = [torch.empty(1, 4, 16384, 64, device="meta") for _ in range(3)]

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return step(*(x.detach().requires_grad_() for x in (query, key, value)), is_causal=True)

    assert torch_pjrt.compile_for("v5e:2x2", attend, *inputs).temporary_bytes < 64e6
