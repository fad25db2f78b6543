"""Attention in two products is the attention that it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torch_pjrt_quant.pt2e.attention import split_attention

#   options, shape of queries, of keys and values; masks that are added, and that say where to look
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "plain": ({}, (2, 4, 5, 8), (2, 4, 7, 8)),
    "causal": ({"is_causal": True}, (2, 4, 5, 8), (2, 4, 5, 8)),
    "a scale": ({"scale": 0.3}, (2, 4, 5, 8), (2, 4, 7, 8)),
    "a mask": ({"attn_mask": torch.randn(5, 7)}, (2, 4, 5, 8), (2, 4, 7, 8)),
    "where to look": ({"attn_mask": torch.ones(5, 7).tril() > 0}, (2, 4, 5, 8), (2, 4, 7, 8)),
    "shared heads": ({"enable_gqa": True}, (2, 6, 5, 8), (2, 2, 7, 8)),
    "shared heads, causal": ({"enable_gqa": True, "is_causal": True}, (2, 6, 5, 8), (2, 3, 5, 8)),
    "one head for all": ({"enable_gqa": True}, (3, 4, 1, 8), (3, 1, 6, 8)),
}


@pytest.mark.parametrize("case", CASES)
def test_values_stay(case):
    options, queries, keys = CASES[case]

    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    q, k, v = torch.randn(queries), torch.randn(keys), torch.randn(keys)
    program: Any = torch.export.export(Attention(), (q, k, v)).module()

    split = split_attention(program)

    names = [getattr(n.target, "__name__", "") for n in split.graph.nodes]
    assert names.count("matmul.default") == 2
    assert "scaled_dot_product_attention.default" not in names
    torch.testing.assert_close(split(q, k, v), Attention()(q, k, v))
