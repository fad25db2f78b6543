"""Gradients of attention in `torch.func` are one operator and its backward, batched, as often as wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_leaves

import torch_pjrt
from quickly import compiled_quickly  # noqa: F401  all tests here
from seen_operators import Seen
from torch_pjrt.extend import counters

Tensor = torch.Tensor
FORWARD = "_scaled_dot_product_fused_attention_overrideable"
BACKWARD = f"{FORWARD}_backward"
grad, vmap, jacrev = torch.func.grad, torch.vmap, torch.func.jacrev


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, MASK, OF_ALL = normal(3, 2, 4, 5, 8), normal(3, 5, 5, seed=1), normal(2, 1, 5, 5, seed=2)
SMALL = X[0, :1, :1, :3, :2]


def causal(x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x, x, is_causal=True).square().sum()


def masked(x: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, 2 * x, x + 1, mask).square().sum()


def seen(x: Tensor, mask: Tensor) -> Tensor:
    return masked(x, mask > -1)


def of_gradient(x: Tensor) -> Tensor:
    return grad(causal)(x).square().sum()


def _created(x: Tensor) -> Any:
    """Gradients of gradients, without `torch.func`."""
    leaf, found = x.detach().requires_grad_(), []
    y = causal(leaf)
    for _ in range(3):
        found += torch.autograd.grad(y, leaf, create_graph=True)
        y = found[-1].square().sum()
    return [g.detach() for g in found]


#   what is taken: the function, its arguments
FIRST: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a gradient": (grad(causal), (X[0],)),
    "of each sample": (vmap(grad(causal)), (X,)),
    "of a batch": (grad(lambda x: vmap(causal)(x).sum()), (X,)),
    "two vmaps": (vmap(vmap(grad(causal))), (X,)),
    "another dim": (vmap(grad(causal), 2), (X.movedim(0, 2),)),
    "a mask of each": (vmap(grad(masked, (0, 1))), (X, MASK)),
    "one mask": (vmap(grad(masked, (0, 1)), (0, None)), (X, MASK[0])),
    "a mask of batches": (vmap(grad(masked, (0, 1)), (0, None)), (X, OF_ALL)),
    "one mask without a gradient": (vmap(grad(masked), (0, None)), (X, MASK[0])),
    "where all look": (vmap(grad(seen), (0, None)), (X, MASK[0])),
    "where each looks": (vmap(grad(seen)), (X, MASK)),
    "a Jacobian": (
        jacrev(lambda x: scaled_dot_product_attention(x, x, x).sum((0, 1, 3))), (X[0],),
    ),
}  # fmt: skip
LATER: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a second gradient": (grad(of_gradient), (X[0],)),
    "of each sample, twice": (vmap(grad(of_gradient)), (X,)),
    "a third": (grad(lambda x: grad(of_gradient)(x).square().sum()), (SMALL,)),
    "a Hessian": (jacrev(jacrev(causal)), (SMALL,)),
    "forward over reverse": (torch.func.hessian(causal), (SMALL,)),
    "with a mask": (grad(lambda x, m: grad(masked)(x, m).square().sum(), (0, 1)), (X[0], MASK[0])),
    "where it looks": (grad(lambda x, m: grad(seen)(x, m).square().sum()), (X[0], MASK[0])),
    "of create_graph": (_created, (X[0],)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # the CPU's own
@pytest.mark.parametrize("name", [*FIRST, *LATER])
def test_they_are_those_of_the_cpu_and_nothing_falls_back(name: str) -> None:
    function, given = {**FIRST, **LATER}[name]
    on_device = [x.to("pjrt") for x in given]
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's kernel has no second derivative
        expected = function(*given)
    before = counters.fallbacks.total()

    found = function(*on_device)

    assert counters.fallbacks.total() == before
    ours = tree_leaves(found)
    theirs = tree_leaves(expected)
    for mine, its in zip(ours, theirs, strict=True):
        scale = float(its.abs().max())
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-5 * max(scale, 1))


@pytest.mark.parametrize("name", FIRST)
def test_it_is_one_operator_and_one_backward(name: str) -> None:
    function, given = FIRST[name]
    there = [x.to("pjrt") for x in given]

    with Seen() as seen_:
        function(*there)

    assert seen_.names.count(FORWARD) == seen_.names.count(BACKWARD) == 1
    assert not {"softmax", "_softmax", "_safe_softmax", "bmm"} & {*seen_.names}


def test_gradients_of_long_samples_make_no_scores() -> None:
    pytest.importorskip("torch_pjrt_kernels", reason="its blocks are what makes no scores")
    samples = normal(2, 1, 1, 4096, 16).to("pjrt")

    for function in (vmap(grad(causal)), grad(lambda x: vmap(causal)(x).sum())):
        assert "4096x4096x" not in torch_pjrt.to_stablehlo([function(samples)])


@pytest.mark.parametrize("randomness", ["different", "same", "error"])
def test_dropout_of_samples_is_as_vmap_is_told(randomness: str) -> None:
    one = normal(1, 2, 6, 8).expand(3, 1, 2, 6, 8).to("pjrt")

    def loss(x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x, x, x, dropout_p=0.5).square().sum()

    def run() -> Tensor:
        return vmap(grad(loss), randomness=randomness)(one).cpu()

    if randomness == "error":
        with pytest.raises(RuntimeError, match="randomness"):
            run()
        return
    first, second, third = run()
    assert torch.equal(first, second) == torch.equal(second, third) == (randomness == "same")
