"""`varlen_attn` is the attention of each sequence by itself, and computes no more than that takes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen
from torch.nn.attention.varlen import AuxRequest, varlen_attn
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt

HEADS, KEY_HEADS, WIDTH = 4, 2, 8
QUERIES, KEYS = [5, 0, 37, 600, 90], [7, 3, 40, 600, 110]

TAKEN = inspect.signature(varlen_attn).parameters  # PyTorch 2.11 takes fewer


def starts(lengths: list[int], device: str = "pjrt") -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int().to(device)


def triple(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((sum(QUERIES), HEADS), *[(sum(KEYS), KEY_HEADS)] * 2)
    made = [torch.randn(*s, WIDTH, generator=generator, dtype=torch.float64) for s in shapes]
    return [x.to(dtype).to(device).requires_grad_() for x in made]


def of_one(q: Any, k: Any, v: Any, window: tuple[int, int]) -> torch.Tensor:
    """One sequence, (queries, heads, width): its last query is at the place of its last key."""
    n, m = len(q), len(k)
    row, column = torch.arange(n)[:, None] + m - n, torch.arange(m)
    seen = torch.ones(n, m, dtype=torch.bool)
    if window[0] >= 0:
        seen &= column >= row - window[0]
    if window[1] >= 0:
        seen &= column <= row + window[1]
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    y = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    return y[0].transpose(0, 1)


def one_by_one(q: Any, k: Any, v: Any, window: tuple[int, int]) -> torch.Tensor:
    parts = zip(q.split(QUERIES), k.split(KEYS), v.split(KEYS), strict=True)
    return torch.cat([of_one(*part, window) for part in parts])


def in_a_row(q: Any, k: Any, v: Any, window: tuple[int, int]) -> torch.Tensor:
    at_queries, at_keys = starts(QUERIES), starts(KEYS)
    shared: dict[str, Any] = {"enable_gqa": True}
    if "enable_gqa" not in TAKEN:
        shared, (k, v) = {}, (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
    found: Any = varlen_attn(
        q, k, v, at_queries, at_keys, max(QUERIES), max(KEYS), window_size=window, **shared
    )
    return found


def with_gradients(attend: Any, leaves: list[torch.Tensor], window: tuple[int, int]) -> list[Any]:
    y = attend(*leaves, window)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (100, 0), (10, 3)])
def test_values_and_gradients_are_those_of_each_sequence(window: tuple[int, int]) -> None:
    ours = with_gradients(in_a_row, triple("pjrt"), window)

    theirs = with_gradients(one_by_one, triple(dtype=torch.float64), window)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=1e-4, atol=1e-4)


def test_gradients_in_float64_are_as_near_as_that() -> None:
    ours = with_gradients(in_a_row, triple("pjrt", torch.float64), (-1, 0))

    theirs = with_gradients(one_by_one, triple(dtype=torch.float64), (-1, 0))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-11, atol=1e-11)


def test_sequences_are_not_multiplied_with_one_another() -> None:
    q, k = (torch.ones(2400, 4, 8, device="pjrt") for _ in range(2))
    k[1200:] = torch.nan
    at = starts([1200, 1200])

    y = varlen_attn(q, k, k, at, at, 1200, 1200, window_size=(-1, 0))

    assert isinstance(y, torch.Tensor)
    assert bool(y[:960].isfinite().all())  # two blocks of 480, which end before the second sequence
    assert bool(y[1200:].isnan().all())


def test_no_array_of_all_scores_is_made() -> None:
    q = torch.zeros(3000, 4, 8, device="pjrt")
    at = starts([1000, 1500, 500])

    found: Any = varlen_attn(q, q, q, at, at, 1500, 1500)
    text = torch_pjrt.to_stablehlo([found])

    assert "3000x3000" not in text


def test_the_logsumexp_is_that_of_the_scores() -> None:
    q = triple()[0].detach()
    at = starts(QUERIES)

    x = q.to("pjrt")
    _, found = varlen_attn(x, x, x, at, at, 600, 600, return_aux=AuxRequest(lse=True))

    scores = [torch.einsum("qhw,khw->hqk", x, x) * WIDTH**-0.5 for x in q.split(QUERIES)]
    expected = torch.cat([x.logsumexp(-1) for x in scores], 1)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_it_is_one_node_of_a_compiled_function() -> None:
    q, k, v = (x.detach() for x in triple("pjrt"))
    on_cpu: Any = (x.detach() for x in triple())
    expected = one_by_one(*on_cpu, window=(-1, 0))

    compiled = torch.compile(in_a_row, fullgraph=True)(q, k, v, (-1, 0))

    torch.testing.assert_close(compiled.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not hasattr(varlen, "varlen_attn_out"), reason="this PyTorch has none")
def test_it_writes_where_it_is_told() -> None:
    q, k, v = (x.detach() for x in triple("pjrt"))
    on_cpu: Any = (x.detach() for x in triple())
    expected = one_by_one(*on_cpu, window=(-1, 0))

    out = torch.empty(q.shape, device="pjrt")
    at, at_keys = starts(QUERIES), starts(KEYS)
    varlen.varlen_attn_out(
        out, q, k, v, at, at_keys, 600, 600, window_size=(-1, 0), enable_gqa=True
    )

    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif("block_table" not in TAKEN, reason="this PyTorch knows no pages")
def test_a_cache_in_pages_is_read_where_its_table_says() -> None:
    generator = torch.Generator().manual_seed(0)
    pages = [torch.randn(12, 16, KEY_HEADS, WIDTH, generator=generator) for _ in range(2)]
    table, used, queries = torch.tensor([[3, 1], [0, 5], [7, 8]]).int(), [20, 16, 9], [2, 1, 4]
    q = torch.randn(sum(queries), HEADS, WIDTH, generator=generator)

    k, v = (x.to("pjrt") for x in pages)
    found: Any = varlen_attn(
        q.to("pjrt"), k, v, starts(queries), None, 4, 32,
        window_size=(-1, 0), enable_gqa=True, block_table=table.to("pjrt"),
        seqused_k=torch.tensor(used).int().to("pjrt"),
    )  # fmt: skip

    for i, (part, ours) in enumerate(
        zip(q.split(queries), found.cpu().split(queries), strict=True)
    ):
        k, v = (x[table[i].long()].flatten(0, 1)[: used[i]] for x in pages)
        torch.testing.assert_close(ours, of_one(part, k, v, (-1, 0)), rtol=1e-4, atol=1e-5)
