"""The backward of attention is differentiated as PyTorch's composition of it is on CPU, again and again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from quickly import compiled_quickly  # noqa: F401  all tests here
from sides import DEVICE

Tensor = torch.Tensor

HEADS, QUERIES, KEYS, WIDTH = 4, 5, 7, 8


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


SEEN = normal(QUERIES, KEYS) > -0.5
SEEN[1] = False  # this query may look nowhere

#   what is special       heads of keys, options
CALLS: dict[str, tuple[int, dict[str, Any]]] = {
    "nothing": (HEADS, {}),
    "causal": (HEADS, {"is_causal": True}),
    "bool mask": (HEADS, {"attn_mask": SEEN}),
    "mask with gradient": (HEADS, {"attn_mask": normal(2, 1, QUERIES, KEYS).requires_grad_()}),
    "scale": (HEADS, {"scale": 0.3}),
    "grouped heads": (2, {"enable_gqa": True}),
}


def _squares(gradients: Iterable[Tensor]) -> Any:
    return sum((g * g).sum() for g in gradients)


def derivatives(device: str, key_heads: int, options: dict[str, Any]) -> list[Tensor]:
    """The first derivatives, the second and the third, one after the other."""
    inputs = [normal(2, HEADS, QUERIES, WIDTH)]
    inputs += [normal(2, key_heads, KEYS, WIDTH, seed=seed) for seed in (1, 2)]
    inputs = [x.to(device).requires_grad_() for x in inputs]
    named: dict[str, Any] = {
        k: v.to(device) if isinstance(v, Tensor) else v for k, v in options.items()
    }
    inputs += [v for v in named.values() if isinstance(v, Tensor) and v.requires_grad]
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.OVERRIDEABLE]):
        y = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], **named)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y).requires_grad_()
    first = torch.autograd.grad(y, inputs, weights, create_graph=True)
    inputs.append(weights)
    second = torch.autograd.grad(_squares(first), inputs, create_graph=True)
    third = torch.autograd.grad(_squares(second), inputs)
    return [g.detach().cpu() for g in (*first, *second, *third)]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", CALLS)
def test_three_derivatives_are_those_of_the_cpu(name: str) -> None:
    key_heads, options = CALLS[name]

    ours = derivatives(DEVICE, key_heads, options)

    torch.testing.assert_close(ours, derivatives("cpu", key_heads, options))


def test_a_backward_with_a_graph_drops_the_weights_that_the_forward_dropped() -> None:
    inputs = [normal(2, heads, QUERIES, WIDTH).to(DEVICE).requires_grad_() for heads in (4, 2, 2)]

    def first(**options: bool) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        y = F.scaled_dot_product_attention(*inputs, dropout_p=0.4, enable_gqa=True)
        return torch.autograd.grad(y, inputs, torch.ones_like(y), **options)

    for ours, plain in zip(first(create_graph=True), first(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), plain.cpu())


def test_the_derivative_of_a_derivative_of_torch_func_is_that_of_the_cpu() -> None:
    x = normal(1, 1, 3, 4)

    def inner(y: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(y, y, y).sin().sum()

    def outer(y: Tensor) -> Tensor:
        return torch.func.grad(inner)(y).sin().sum()

    with sdpa_kernel(SDPBackend.MATH):
        theirs = torch.func.grad(outer)(x)
    torch.testing.assert_close(torch.func.grad(outer)(x.to(DEVICE)).cpu(), theirs)
