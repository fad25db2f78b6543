"""The backward of attention multiplies in an order that XLA's CPU compiler gives to its library."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F

import torch_pjrt


def test_sums_over_rows_have_the_narrow_factor_first() -> None:
    query, key, value = (
        torch.randn(2, 3, 160, 4).to("pjrt").requires_grad_() for _ in ("query", "key", "value")
    )
    y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    gradients = torch.autograd.grad(y.square().sum(), (query, key, value))

    text = torch_pjrt.to_stablehlo(gradients)

    products = re.findall(r"contracting_dims = \[2\] x \[2\].*: \((.*)\) ->", text)
    # In blocks of queries: the first 80 look at 80 keys, which is too few, the others at all 160.
    assert products == [
        *["tensor<2x3x80x80xf32>, tensor<2x3x80x4xf32>"] * 2,
        *["tensor<2x3x80x4xf32>, tensor<2x3x80x160xf32>"] * 2,
    ]
