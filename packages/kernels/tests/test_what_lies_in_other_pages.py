"""What a request may not read does not reach it: all such places hold NaN, and nothing changes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from torch_pjrt_kernels import paged_attention, ragged_paged_attention

HEADS, KEY_HEADS, WIDTH = 4, 2, 8
Numbers = torch.Generator


def whole(low: int, high: int, numbers: Numbers) -> int:
    return int(torch.randint(low, high + 1, (), generator=numbers))


class Requests:
    """Some sequences in pages in any order; `with_nan` has NaN wherever none of `kept` has a position."""

    def __init__(self, seed: int) -> None:
        self.numbers = numbers = torch.Generator().manual_seed(seed)
        self.size, self.n, self.most = 8, 4, 5  # the same for all, so that all are one program
        self.lengths = [whole(3, self.most * self.size, numbers) for _ in range(self.n)]
        n_pages = self.n * self.most + 2
        order = torch.randperm(n_pages - 1, generator=numbers) + 1  # page 0 is nobody's
        self.table = order[: self.n * self.most].reshape(self.n, self.most).int()
        # Behind its end a table is filled up: with 0, with pages of others, or with what is no page.
        filling = [0, int(self.table[0, 0]), -1, 10**6][whole(0, 3, numbers)]
        for i, length in enumerate(self.lengths):
            self.table[i, -(-length // self.size) :] = filling
        shape = (n_pages, self.size, KEY_HEADS, WIDTH)
        self.pages = [torch.randn(shape, generator=numbers) for _ in range(2)]

    def with_nan(self, pages: torch.Tensor, kept: list[int], window: int | None = None) -> Any:
        """`window`: what lies before it is not kept either; decoding looks from the last position."""
        made = torch.full_like(pages, torch.nan)
        for i in kept:
            first = 0 if window is None else max(self.lengths[i] - 1 - window, 0)
            for at in range(first, self.lengths[i]):
                page = int(self.table[i, at // self.size])
                made[page, at % self.size] = pages[page, at % self.size]
        return made


def paged(of: Requests, device: str, pages: list[torch.Tensor], window: int | None) -> Any:
    q = torch.randn(of.n, 1, HEADS, WIDTH, generator=torch.Generator().manual_seed(9))
    given = (q, *pages, of.table, torch.tensor(of.lengths))
    return paged_attention(*(x.to(device) for x in given), window=window).cpu()


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("window", [None, 7])
def test_paged_attention_reads_its_own_positions(device: str, window: int | None) -> None:
    for of in map(Requests, range(6)):
        with_nan = [of.with_nan(x, list(range(of.n)), window) for x in of.pages]

        found, expected = (paged(of, device, x, window) for x in (with_nan, of.pages))

        torch.testing.assert_close(found, expected)


def ragged(of: Requests, device: str, pages: list[torch.Tensor]) -> list[torch.Tensor]:
    keys, values = (x.to(device) for x in pages)
    queries = [1 + i % 3 for i in range(of.n)]
    starts = torch.tensor([0, *queries]).cumsum(0).int().to(device)
    q = torch.randn(sum(queries), HEADS, WIDTH, generator=torch.Generator().manual_seed(9))
    rest = (of.table.to(device), torch.tensor(of.lengths).to(device), starts)
    found = ragged_paged_attention(q.to(device), keys, values, *rest).cpu()
    return list(found.split(queries))


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_ragged_attention_keeps_requests_apart(device: str) -> None:
    """Also from those of the same block of queries: each is as it is while all others hold NaN."""
    for of in map(Requests, range(6)):
        expected = ragged(of, device, of.pages)
        for kept in {0, of.n - 1}:
            with_nan = [of.with_nan(x, [kept]) for x in of.pages]
            found = ragged(of, device, with_nan)

            torch.testing.assert_close(found[kept], expected[kept])
            for other in set(range(of.n)) - {kept}:
                assert bool(found[other].isnan().all())


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_infinities_of_a_request_stay_its_own(device: str) -> None:
    of = Requests(3)
    expected, values = ragged(of, device, of.pages), of.pages[1].clone()
    page = int(of.table[1, 0])
    values[page, 0, :, 0], values[page, 0, :, 1] = torch.inf, -torch.inf

    found = ragged(of, device, [of.pages[0], values])

    torch.testing.assert_close(found[0], expected[0])
    assert bool((found[1][..., 0] == torch.inf).all())
    assert bool((found[1][..., 1] == -torch.inf).all())
    torch.testing.assert_close(found[1][..., 2:], expected[1][..., 2:])


@pytest.mark.skipif(
    "block_table" not in inspect.signature(varlen_attn).parameters,
    reason="this PyTorch's `varlen_attn` knows no pages",
)
def test_varlen_attention_to_pages_keeps_requests_apart() -> None:
    for of in map(Requests, range(4)):
        with_nan = [of.with_nan(x, [0]) for x in of.pages]

        found, expected = (varlen(of, x) for x in (with_nan, of.pages))

        torch.testing.assert_close(found[0], expected[0])


def varlen(of: Requests, pages: list[torch.Tensor]) -> torch.Tensor:
    q = torch.randn(of.n, HEADS, WIDTH, generator=torch.Generator().manual_seed(9))
    starts, used = torch.arange(of.n + 1).int(), torch.tensor(of.lengths).int()
    given = [x.to("pjrt") for x in (q, *pages, starts)]
    found: Any = varlen_attn(
        *given, None, 1, 99, window_size=(-1, 0), enable_gqa=True,  # type: ignore[misc]
        block_table=of.table.to("pjrt"), seqused_k=used.to("pjrt"),
    )  # fmt: skip
    return found.cpu()
