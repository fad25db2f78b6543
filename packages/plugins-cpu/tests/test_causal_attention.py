"""Causal attention of long sequences computes no block of scores that the mask would hide."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_pjrt

Tensors = list[torch.Tensor]


def attended(inputs: Tensors, device: str, **options: Any) -> Tensors:
    """The output and the gradients of query, key and value."""
    query, key, value = (x.to(device).requires_grad_() for x in inputs)
    y = F.scaled_dot_product_attention(query, key, value, **options)
    return [y, *torch.autograd.grad(y.square().sum(), (query, key, value))]


def inputs_of(length: int, heads: int, key_heads: int, dtype: torch.dtype) -> Tensors:
    torch.manual_seed(0)
    return [torch.randn(2, h, length, 8, dtype=dtype) for h in (heads, key_heads, key_heads)]


def scores_of(length: int, **options: bool) -> set[str]:
    """The shapes of all products over the width: queries x keys."""
    inputs = inputs_of(length, 3, 3, torch.float32)
    text = torch_pjrt.to_stablehlo(attended(inputs, "pjrt", **options))
    return set(re.findall(r"contracting_dims = \[3\] x \[3\].*-> tensor<2x3x(\d+x\d+)xf32>", text))


@pytest.mark.parametrize("length", [127, 128, 129, 512, 515])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_the_cpu(length: int, dtype: torch.dtype) -> None:
    inputs = inputs_of(length, 3, 3, dtype)

    for ours, theirs in zip(
        attended(inputs, "pjrt", is_causal=True),
        attended(inputs, "cpu", is_causal=True),
        strict=True,
    ):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_query_heads_may_share_a_key_head() -> None:
    inputs = inputs_of(200, 4, 2, torch.float64)

    for ours, theirs in zip(
        attended(inputs, "pjrt", is_causal=True, enable_gqa=True),
        attended(inputs, "cpu", is_causal=True, enable_gqa=True),
        strict=True,
    ):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_blocks_of_queries_see_the_keys_up_to_their_last() -> None:
    assert scores_of(64, is_causal=True) == {"64x64"}
    assert scores_of(130, is_causal=True) == {"65x65", "65x130"}
    assert scores_of(512, is_causal=True) == {"128x128", "128x256", "128x384", "128x512"}


def test_attention_that_is_not_causal_is_computed_at_once() -> None:
    assert scores_of(512) == {"512x512"}
