"""`scaled_dot_product_attention` in `torch.vmap` is one operator of a larger batch, and right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt
from quickly import compiled_quickly  # noqa: F401  all tests here
from seen_operators import Seen
from torch_pjrt.extend import counters

OPERATOR = "_scaled_dot_product_fused_attention_overrideable"
ATTEND = scaled_dot_product_attention


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = normal(3, 2, 4, 5, 8), normal(3, 2, 4, 7, 8, seed=1), normal(3, 2, 4, 7, 6, seed=2)
MASK = normal(3, 5, 7, seed=3)
#   what is batched: the function, its arguments, their dims
CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[int | None, ...]]] = {
    "all": (ATTEND, (Q, K, V), (0, 0, 0)),
    "another dim": (ATTEND, (Q.movedim(0, 2), K, V), (2, 0, 0)),
    "queries": (ATTEND, (Q, K[0], V[0]), (0, None, None)),
    "values": (ATTEND, (Q[0], K[0], V), (None, None, 0)),
    "causal": (lambda q, k, v: ATTEND(q, k, v, is_causal=True), (Q, K, V), (0, 0, 0)),
    "a mask of each": (ATTEND, (Q, K, V, MASK), (0, 0, 0, 0)),
    "where each looks": (
        lambda q, k, v, m: ATTEND(q, k, v, m > -1), (Q, K, V, MASK), (0, 0, 0, 0),
    ),
    "one mask": (ATTEND, (Q, K, V, MASK[0]), (0, 0, 0, None)),
    "no batch inside": (lambda q, k, v: ATTEND(q, k, v, scale=0.3), (Q[0], K[0], V[0]), (0, 0, 0)),
    "shared heads": (
        lambda q, k, v: ATTEND(q, k, v, enable_gqa=True), (Q, K[:, :, :2], V[:, :, :2]), (0, 0, 0),
    ),
    "two vmaps": (torch.vmap(ATTEND), (Q, K, V), (0, 0, 0)),
    "the inner one": (torch.vmap(ATTEND, (None, 0, 0)), (Q[0, 0], K, V), (None, 0, 0)),
    "the outer one": (torch.vmap(ATTEND, (0, None, 0)), (Q, K[0, 0], V), (0, None, 0)),
}  # fmt: skip


def attended(device: str, name: str) -> list[torch.Tensor]:
    """The output and all gradients."""
    function, given, dims = CALLS[name]
    leaves = [x.detach().to(device).requires_grad_() for x in given]
    y = torch.vmap(function, dims)(*leaves)
    wanted = [x for n, x in enumerate(leaves) if name != "where each looks" or n < 3]
    return [y, *torch.autograd.grad(y.square().sum(), wanted)]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # the CPU's own
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_the_cpu(name: str) -> None:
    expected = attended("cpu", name)

    found = attended("pjrt", name)

    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_it_is_one_operator(name: str) -> None:
    function, given, dims = CALLS[name]
    there = [x.to("pjrt") for x in given]

    with Seen() as seen:
        torch.vmap(function, dims)(*there)

    assert seen.names.count(OPERATOR) == 1
    assert not {"softmax", "_softmax", "_safe_softmax", "bmm"} & {*seen.names}


def test_scores_are_not_made() -> None:
    pytest.importorskip("torch_pjrt_kernels", reason="its blocks are what makes no scores")
    q = normal(2, 1, 2, 2048, 16).to("pjrt")

    explained = torch_pjrt.explain(lambda: torch.vmap(ATTEND)(q, q, q))

    assert "in blocks" in str(explained)


@pytest.mark.parametrize("randomness", ["different", "same", "error"])
def test_dropout_is_as_vmap_is_told(randomness: str) -> None:
    one = normal(1, 2, 6, 8).expand(3, 1, 2, 6, 8).to("pjrt")

    def run() -> torch.Tensor:
        dropping = lambda x: ATTEND(x, x, x, dropout_p=0.5)  # noqa: E731
        return torch.vmap(dropping, randomness=randomness)(one).cpu()

    if randomness == "error":
        with pytest.raises(RuntimeError, match="randomness"):
            run()
        return
    first, second, third = run()
    assert torch.equal(first, second) == torch.equal(second, third) == (randomness == "same")


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # the CPU's own
def test_gradients_of_each_sample_are_those_of_the_cpu_and_nothing_falls_back() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return ATTEND(x, x, x, is_causal=True).square().sum()

    there = Q.to("pjrt")
    before = counters.fallbacks.total()
    found = torch.vmap(torch.func.grad(loss))(there)
    of_all = torch.func.grad(lambda x: torch.vmap(loss)(x).sum())(there)

    assert counters.fallbacks.total() == before
    expected = torch.vmap(torch.func.grad(loss))(Q)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_all.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_tensors_of_the_cpu_are_pytorchs_as_before() -> None:
    with Seen() as seen:
        found = torch.vmap(ATTEND)(Q, K, V)

    torch.testing.assert_close(found, torch.stack([ATTEND(*x) for x in zip(Q, K, V, strict=True)]))
    assert OPERATOR not in seen.names
