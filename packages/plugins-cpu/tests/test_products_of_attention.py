"""The backward of attention multiplies in an order that XLA's CPU compiler gives to its library."""

from __future__ import annotations

import os
import re

import torch
import torch.nn.functional as F

import torch_pjrt
import warm


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


_SMALL = """
import random, torch
import torch.nn.functional as F

def gradients(device, seed):
    draw = random.Random(seed)
    batch, heads = draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 4])
    q, k, w, v = (draw.choice([1, 2, 3, 4, 5, 7, 8, 12, 33]) for _ in range(4))
    kind = draw.choice([dict(), dict(is_causal=True), dict(enable_gqa=True)])
    shared = 2 if "enable_gqa" in kind and heads > 1 else 1
    print(f"{seed}: batch {batch}, heads {heads}, queries {q}, keys {k}, widths {w} {v}, {kind}", flush=True)
    torch.manual_seed(seed)
    of_keys = (batch, heads // shared, k)
    query, key, value = (
        torch.randn(*shape).to(device).requires_grad_()
        for shape in [(batch, heads, q, w), (*of_keys, w), (*of_keys, v)]
    )
    out = F.scaled_dot_product_attention(query, key, value, **kind)
    grads = torch.autograd.grad(out.sum(), (query, key, value))
    return [out.detach().cpu(), *(g.cpu() for g in grads)]

for seed in range(40):
    for ours, theirs in zip(gradients("pjrt", seed), gradients("cpu", seed), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
"""


def test_gradients_of_small_attention_end_no_process() -> None:
    """XLA's compiler ended it at 3 queries of 6 keys; values are those of PyTorch's CPU."""
    ran = warm.run(["-c", _SMALL], {**os.environ, "TORCH_PJRT_CACHE_DIR": ""})
    assert ran.returncode == 0, ran.stdout.splitlines()[-1:] + ran.stderr.splitlines()[-20:]
    assert len(ran.stdout.splitlines()) == 2 * 40
