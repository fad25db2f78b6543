"""Caches of 8 bits err by what their numbers round, on the device as on the CPU."""

from __future__ import annotations

import pytest
import torch

from torch_pjrt_quant import from_cache, to_cache

#   dtype, error of one number relative to the largest of its row (int8) or to itself (float8, half a step)
ERRORS = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}
F = torch.nn.functional


@pytest.mark.parametrize("dtype", ERRORS)
def test_each_number_is_rounded_to_nearest(dtype):
    x = torch.randn(5, 7, 2, 16) * torch.logspace(-3, 3, 7)[:, None, None]

    numbers, scale = to_cache(x.to("pjrt"), dtype)

    assert numbers.dtype is dtype and scale.dtype is torch.float32
    assert scale.shape == x.shape[:-1]
    here = to_cache(x, dtype)
    torch.testing.assert_close(scale.cpu(), here[1], rtol=1e-6, atol=0)
    back = from_cache(numbers, scale).cpu()
    largest = x.abs().amax(-1, keepdim=True)
    bound = largest if dtype is torch.int8 else x.abs() + largest * 2**-10
    assert ((back - x).abs() <= bound * ERRORS[dtype] * 1.001).all()


@pytest.mark.parametrize(("dtype", "limit"), [(torch.int8, 0.01), (torch.float8_e4m3fn, 0.04)])
def test_attention_reads_pages_that_are_written_once(dtype, limit):
    """Tokens go to slots of pages; scales multiply scores and weights, not keys and values."""
    tokens, heads, width, slots = 24, 2, 32, 40
    q, k, v = torch.randn(3, tokens, heads, width)
    places = torch.randperm(slots)[:tokens].to("pjrt")
    pages = [torch.zeros(slots, heads, width, dtype=dtype, device="pjrt") for _ in range(2)]
    scales = [torch.zeros(slots, heads, device="pjrt") for _ in range(2)]
    for part in torch.arange(tokens).split(10):
        for page, scale, x in zip(pages, scales, (k, v), strict=True):
            numbers, factors = to_cache(x[part].to("pjrt"), dtype)
            page[places[part]] = numbers
            scale[places[part]] = factors

    (keys, values), (of_keys, of_values) = ([t[places] for t in ts] for ts in (pages, scales))
    scores = torch.einsum("qhd,khd->hqk", q.to("pjrt"), keys.float()) / width**0.5
    weights = (scores * of_keys.T[:, None]).softmax(-1) * of_values.T[:, None]
    got = torch.einsum("hqk,khd->hqd", weights, values.float())

    by_head = [t.transpose(0, 1) for t in (q, k, v)]
    wanted = F.scaled_dot_product_attention(by_head[0], by_head[1], by_head[2])
    assert (got.cpu() - wanted).norm() / wanted.norm() < limit


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match=r"a cache of torch\.int16: it takes torch\.int8"):
        to_cache(torch.randn(2, 2), torch.int16)
