"""What is shifted by its own maximum, or by what else is made of it, is as on the CPU, however large."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product

import pytest
import torch
from torch.nn import functional as F

Tensor = torch.Tensor
Call = Callable[[Tensor], Tensor]

MAKERS: dict[str, Call] = {
    "x * x": lambda x: x * x,
    "x * n": lambda x: x * 7.3,
    "x ** 2": lambda x: x**2,
    "-(x * x)": lambda x: -(x * x * 1.1),
    "transposed": lambda x: (x * x).t().contiguous().t(),
    "flipped": lambda x: (x * x).flip(-1),
    "joined": lambda x: torch.cat([x * x, x * 1.7], -1),
    "cut": lambda x: (x * x)[:, 1:20],
    "chosen": lambda x: torch.where(x > 0, x * x, x * 1.5),
    "exp": lambda x: (x / x.abs().max() * 80).exp() * 1.1,
}
USERS: dict[str, Call] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax(0)": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmin": lambda x: F.softmin(x, -1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "x - max": lambda x: (x - x.amax(-1, keepdim=True)).exp(),
    "min - x": lambda x: (x.amin(-1, keepdim=True) - x).exp(),
    "cross_entropy": lambda x: F.cross_entropy(
        x, torch.zeros(len(x), dtype=torch.int64, device=x.device)
    ),
}
# What is exactly 0 somewhere, or has no wrong sign, as it is written by hand.
DIFFERENCES: dict[str, Call] = {
    "max().values": lambda x: x - x.max(-1, keepdim=True).values,
    "max of all": lambda x: x - x.max(),
    "min().values": lambda x: x.min(-1, keepdim=True).values - x,
    "aminmax": lambda x: x - x.aminmax(dim=-1, keepdim=True).max,
    "sort": lambda x: x - x.sort(-1, descending=True).values[:, :1],
    "of what is sorted": lambda x: x.sort(-1).values - x.sort(-1).values[:, -1:],
    "topk": lambda x: x - x.topk(3, -1).values[:, 2:],
    "kthvalue": lambda x: x - x.kthvalue(3, -1, keepdim=True).values,
    "median": lambda x: x - x.median(-1, keepdim=True).values,
    "cummax": lambda x: x - x.cummax(-1).values,
    "cummin": lambda x: x - x.cummin(-1).values,
    "maximum": lambda x: x - torch.maximum(x, x.roll(1, -1)),
    "maximum of all": lambda x: x - reduce(torch.maximum, x.unbind(-1))[:, None],
    "gather": lambda x: x - x.gather(-1, x.argmax(-1, keepdim=True)),
    "index": lambda x: x - x[torch.arange(len(x), device=x.device), x.argmax(-1)][:, None],
    "index_select": lambda x: x - x.index_select(-1, x[0].argmax()[None]),
    "masked": lambda x: x - x.masked_fill(x < 0, -1e38).amax(-1, keepdim=True),
    "max_pool": lambda x: x - F.max_pool1d(x[None], 3, 1, 1)[0],
    "adaptive_max_pool": lambda x: x - F.adaptive_max_pool1d(x[None], 1)[0],
    "alpha": lambda x: torch.add(x, x.amax(-1, keepdim=True), alpha=-1),
    "sum with a minimum": lambda x: x + (-x).amin(-1, keepdim=True),
    "sum with what is sorted": lambda x: x + (-x).sort(-1).values[:, :1],
    "rsub": lambda x: torch.rsub(x, x.amax(-1, keepdim=True)),
    "itself": lambda x: x - x.clone() * 1,
    "largest norm": lambda x: x.abs() - x.norm(float("inf"), -1, keepdim=True),
    "scatter_reduce": lambda x: x - torch.full_like(x[:, :1], -float("inf")).scatter_reduce(
        1, torch.zeros_like(x, dtype=torch.int64), x, "amax"),
    "neighbours": lambda x: x.sort(-1).values.diff(dim=-1),
    "lerp": lambda x: torch.lerp(x, x.amax(-1, keepdim=True).expand_as(x), 1.0),
    "in place": lambda x: x.clone().sub_(x.amax(-1, keepdim=True)),
    "mse": lambda x: F.mse_loss(x, x.clone()),
    "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "logcumsumexp": lambda x: x - x.logcumsumexp(-1),
    "logaddexp": lambda x: x - torch.logaddexp(x, x.flip(-1)),
}  # fmt: skip


def weighted(x: Tensor) -> Tensor:
    return x * torch.linspace(0, 1, x.shape[-1], dtype=x.dtype, device=x.device)


DIFFERENTIATED: dict[str, Call] = {
    **{name: USERS[name] for name in ("log_softmax", "logsumexp", "x - max", "cross_entropy")},
    "softmax": lambda x: weighted(x.softmax(-1)),
    "softmin": lambda x: weighted(F.softmin(x, -1)),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(-1)),
    "by hand": lambda x: (
        (x - x.max(-1, keepdim=True).values).exp().sum(-1).log() + x.max(-1).values
    ),
    "sort": lambda x: (x - x.sort(-1, descending=True).values[:, :1]).exp(),
}
SIZES = (1e4, 1e9)
FEW = ("x * x", "x * n", "chosen", "exp")


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
def test_what_is_shifted_by_its_maximum_is_finite_where_it_is_on_the_cpu(user: str) -> None:
    torch.manual_seed(0)
    given = torch.randn(16, 33)
    cases = list(product(MAKERS.items(), SIZES))
    made = [USERS[user](make((given * size).to("pjrt"))) for (_, make), size in cases]

    wrong = [
        (name, size)
        for ((name, make), size), ours in zip(cases, made, strict=True)
        if not torch.equal(ours.cpu().isfinite(), USERS[user](make(given * size)).isfinite())
    ]

    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_from_what_was_made_of_a_product_are_those_of_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    given, call = torch.randn(16, 33) * 1e9, DIFFERENCES[name]
    made = {n: call(MAKERS[n](given.to("pjrt"))) for n in FEW}

    wrong = []
    for n, result in made.items():
        ours, theirs = result.cpu(), call(MAKERS[n](given))
        is_exact = n != "exp" and "log" not in name
        if not torch.equal(ours.exp().isfinite(), theirs.exp().isfinite()):
            wrong.append((n, "infinite"))
        elif is_exact and not torch.equal(ours == 0, theirs == 0):
            wrong.append((n, "zeros"))

    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_of_large_products_are_finite_where_they_are_on_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    given = torch.randn(16, 33) * 1e9

    def gradient(x: Tensor, make: Call) -> Tensor:
        x = x.clone().requires_grad_()
        DIFFERENTIATED[name](make(x)).sum().backward()
        assert x.grad is not None
        return x.grad

    made = {n: gradient(given.to("pjrt"), MAKERS[n]) for n in FEW}

    wrong = [
        n
        for n, ours in made.items()
        if not torch.equal(ours.cpu().isfinite(), gradient(given, MAKERS[n]).isfinite())
    ]

    assert wrong == []


def test_infinities_and_nans_are_shifted_as_on_the_cpu() -> None:
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor([[inf, 1.0], [-inf, 1.0], [-inf, -inf], [inf, inf], [nan, 1.0], [1.0, 1.0]])
    for user in ("softmax", "log_softmax", "logsumexp", "x - max", "min - x"):
        expected = USERS[user](rows * 1.5)
        torch.testing.assert_close(
            USERS[user](rows.to("pjrt") * 1.5).cpu(), expected, equal_nan=True
        )
