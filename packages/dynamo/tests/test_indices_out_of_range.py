"""Indices past the true elements are refused as on CPU, though the array has room there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

Tensor = torch.Tensor
Compute = Callable[[Tensor, Tensor], Tensor]


def like(i: Tensor, x: Tensor) -> Tensor:
    """The indices as a column for each of the tensor's."""
    return i[:, None].expand(-1, x.shape[1])


def ones(i: Tensor) -> Tensor:
    return torch.ones(i.shape[0], 4, device=i.device)


#   reading and writing along the first dim of x[n, 4], where n varies, at i[3]
NOT_NEGATIVE: dict[str, Compute] = {
    "cross_entropy": lambda x, i: F.cross_entropy(x.t()[:3], i),
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(0, like(i, x)),
    "index_add": lambda x, i: x.index_add(0, i, ones(i)),
    "index_copy": lambda x, i: x.index_copy(0, i, ones(i)),
    "index_reduce": lambda x, i: x.index_reduce(0, i, ones(i), "amax"),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select, columns": lambda x, i: x.t().index_select(1, i),
    "nll_loss": lambda x, i: F.nll_loss(x.t()[:3], i, reduction="sum"),
    "scatter": lambda x, i: x.scatter(0, like(i, x), 2.0),
    "scatter of a tensor": lambda x, i: x.scatter(0, like(i, x), ones(i)),
    "scatter_add": lambda x, i: x.scatter_add(0, like(i, x), ones(i)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, like(i, x), ones(i), "amax"),
}
NEGATIVE: dict[str, Compute] = {
    "index": lambda x, i: x[i],
    "index by columns": lambda x, i: x.t()[:, i],
    "index by two": lambda x, i: x[i, i * 0],
    "index of another dim too": lambda x, i: x[i[:, None], torch.arange(4, device=i.device)],
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "index_put": lambda x, i: x.index_put((i,), ones(i)),
    "index_put, adding": lambda x, i: x.index_put((i,), ones(i), accumulate=True),
    "one element": lambda x, i: x[i[2]],
    "put": lambda x, i: x.put(i * 4, ones(i)[:, 0]),
    "take": lambda x, i: x.take(i * 4),
}
CASES = [
    *((name, fn, (5, 7)) for name, fn in NOT_NEGATIVE.items()),
    *((name, fn, (5, 7, -6, -8)) for name, fn in NEGATIVE.items()),
]


def rows(n: int) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(n))


VALID = (rows(5), torch.tensor([0, 1, 4])), (rows(6), torch.tensor([0, 5, 5]))


def check(fn: Compute, own: Compute, indices: tuple[int, ...]) -> None:
    for x, i in VALID:
        torch.testing.assert_close(own(x, i).cpu(), fn(x, i))
    x = rows(5)
    for index in indices:
        i = torch.tensor([0, 1, index])
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            fn(x, i)
        with pytest.raises(wanted.type) as got:
            own(x, i).cpu()
        assert str(got.value).startswith(str(wanted.value).splitlines()[0])
    x, i = VALID[0]
    torch.testing.assert_close(own(x, i).cpu(), fn(x, i))


def in_buckets(fn: Compute) -> Compute:
    compiled = torch.compile(fn, backend="pjrt")

    def own(x: Tensor, i: Tensor) -> Tensor:
        given = x.to("pjrt")
        torch._dynamo.mark_dynamic(given, 0)
        return compiled(given, i.to("pjrt") + 0)

    return own


def of_selected(fn: Compute) -> Compute:
    def own(x: Tensor, i: Tensor) -> Tensor:
        more = torch.cat([x, x[:1].expand(9 - len(x), -1)]).to("pjrt")
        selected = more[torch.arange(9, device="pjrt") < len(x)]
        return fn(selected, i.to("pjrt") + 0)

    return own


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fn", "indices"), CASES, ids=[name for name, _, _ in CASES])
def test_in_buckets(name: str, fn: Compute, indices: tuple[int, ...]) -> None:
    check(fn, in_buckets(fn), indices)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fn", "indices"), CASES, ids=[name for name, _, _ in CASES])
def test_of_rows_that_a_mask_selects(name: str, fn: Compute, indices: tuple[int, ...]) -> None:
    check(fn, of_selected(fn), indices)


def test_taking_along_a_dim_counts_from_the_start_again() -> None:
    def fn(x: Tensor, i: Tensor) -> Tensor:
        return x.take_along_dim(i[:, None], 0)

    own = of_selected(fn)
    for x, i in (*VALID, (rows(5), torch.tensor([5, -1, 7])), (rows(6), torch.tensor([-6, 3, 8]))):
        torch.testing.assert_close(own(x, i).cpu(), fn(x, i))
