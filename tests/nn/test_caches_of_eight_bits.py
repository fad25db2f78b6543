"""A cache in 8 bits, as `torch_pjrt_quant` makes it, is what `torch_pjrt_kernels` reads in pages."""

from __future__ import annotations

import pytest
import torch

from torch_pjrt_kernels import paged_attention, update_pages
from torch_pjrt_quant import to_cache

BATCH, HEADS, KEY_HEADS, WIDTH = 2, 4, 2, 32
PAGES, PAGE_SIZE = 9, 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(torch.int8, 0.012), (torch.float8_e4m3fn, 0.05), (torch.float8_e5m2, 0.1)],
)
def test_prompts_and_tokens_see_nearly_what_a_cache_of_floats_holds(dtype, limit):
    table = torch.tensor([[5, 0, 7, 2], [1, 8, 3, 6]]).to("pjrt")
    shape = PAGES, PAGE_SIZE, KEY_HEADS
    pages = [torch.zeros(*shape, WIDTH, dtype=dtype, device="pjrt") for _ in "kv"]
    scales = [torch.zeros(shape, device="pjrt") for _ in "kv"]
    q, k, v = (torch.randn(BATCH, 7, heads, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    # Tokens of very different sizes: one scale for all of a head's would lose the small ones.
    v = v * torch.logspace(-2, 1, 7)[:, None, None]

    parts = []
    for n, new in ((6, slice(0, 6)), (7, slice(6, 7))):  # a prompt, then a token
        lengths = torch.full((BATCH,), n).to("pjrt")
        for x, numbers, factors in zip((k, v), pages, scales, strict=True):
            small, scale = to_cache(x[:, new].to("pjrt"), dtype)
            update_pages(numbers, small, table, lengths)
            update_pages(factors, scale, table, lengths)
        of_keys, of_values = scales
        keys, values = pages
        result = paged_attention(
            q[:, new].to("pjrt"),
            keys,
            values,
            table,
            lengths,
            key_scale=of_keys,
            value_scale=of_values,
        )
        parts.append(result.cpu())

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    ).transpose(1, 2)
    assert (torch.cat(parts, 1) - wanted).norm() / wanted.norm() < limit
