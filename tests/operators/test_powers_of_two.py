"""Powers of two and their logarithms are exact, as on the CPU: scales of float8 are rounded to such."""

from __future__ import annotations

import pytest
import torch

LOWEST = {torch.float32: -126, torch.float64: -1022, torch.bfloat16: -126, torch.float16: -14}
HIGHEST = {torch.float32: 130, torch.float64: 1030, torch.bfloat16: 130, torch.float16: 17}
WAYS = {
    "exp2": torch.exp2,
    "pow of a number": lambda x: torch.pow(2.0, x),
    "pow of a tensor": lambda x: torch.pow(torch.full_like(x, 2), x),
    "ldexp": lambda x: torch.ldexp(torch.ones_like(x), x),
}


@pytest.mark.parametrize("dtype", LOWEST)
@pytest.mark.parametrize("way", WAYS)
def test_whole_powers_are_exact(way, dtype):
    x = torch.arange(LOWEST[dtype], HIGHEST[dtype]).to(dtype)

    assert torch.equal(WAYS[way](x.to("pjrt")).cpu(), WAYS[way](x))


@pytest.mark.parametrize("dtype", LOWEST)
def test_their_logarithms_are_whole(dtype):
    x = torch.exp2(torch.arange(LOWEST[dtype], min(HIGHEST[dtype], 1024)).double()).to(dtype)

    assert torch.equal(torch.log2(x.to("pjrt")).cpu(), torch.log2(x))


@pytest.mark.parametrize("op", [torch.exp2, torch.log2])
def test_others_are_near(op):
    odd = torch.tensor([0.0, -0.0, -1.0, 1e-40, 3e38, torch.inf, -torch.inf, torch.nan, 127.9, 128])
    near_one = 1 + torch.linspace(-1e-3, 1e-3, 101)
    x = torch.cat([torch.randn(1000) * 30, torch.rand(1000) * 3, near_one, odd[odd != 1e-40]])

    torch.testing.assert_close(op(x.to("pjrt")).cpu(), op(x), rtol=2e-6, atol=2e-7, equal_nan=True)
