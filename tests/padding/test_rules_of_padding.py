"""Operators that one rule pads: of rows that a mask selects, and compiled for a batch whose size varies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from fixture_types import Count

Tensor = torch.Tensor

WEIGHTS = torch.randn(5, 2, 3, 3, generator=torch.Generator().manual_seed(0))

# Of images[n, 2, 6, 6].
OF_IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x, 2),
    "average pooling": lambda x: F.avg_pool2d(x, 2),
    "batch norm": lambda x: F.batch_norm(
        x, torch.ones(2, device=x.device), torch.ones(2, device=x.device)
    ),
    "convolution": lambda x: F.conv2d(x, WEIGHTS.to(x.device)),
    "flip": lambda x: x.flip(1, 3),
    "group norm": lambda x: F.group_norm(x, 2),
    "log_softmax": lambda x: x.flatten(1).log_softmax(1),
    "max pooling": lambda x: F.max_pool2d(x, 2),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "triangle": lambda x: x.triu(1) - x.tril(),
}
# For their backward, or at all.
WITHOUT_A_RULE = "batch norm", "group norm"


def images(n: int) -> Tensor:
    return torch.randn(n, 2, 6, 6, generator=torch.Generator().manual_seed(n))


def loss_and_gradient(
    function: Callable[[Tensor], Tensor], x: Tensor, n: int
) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    mask = torch.arange(len(x), device=x.device) % 7 < n
    result = function(x[mask])
    loss = result.sin().mean()
    loss.backward()
    assert x.grad is not None
    return result.detach().cpu(), loss.detach().cpu(), x.grad.cpu()


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_IMAGES)
def test_selected_images_are_those_of_the_cpu(name: str, compiled: Count) -> None:
    function = OF_IMAGES[name]
    after = []

    for n in (1, 2, 4, 6):
        wanted = loss_and_gradient(function, images(21), n)
        saw = loss_and_gradient(function, images(21).to("pjrt"), n)
        torch.testing.assert_close(saw, wanted)
        after.append(compiled())

    if name not in WITHOUT_A_RULE:
        assert after[1] == after[-1], "sizes met later take no programs"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float32])
def test_nothing_is_added_to_a_logsumexp(dtype: torch.dtype) -> None:
    x = torch.tensor([-3, 1, 2, -2]).to(dtype)
    x = x.clamp(0, 3) if dtype == torch.uint8 else x
    mask = torch.tensor([True, False, True, False])

    saw = x.to("pjrt")[mask.to("pjrt")].logsumexp(0)

    torch.testing.assert_close(saw.cpu(), x[mask].logsumexp(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_an_empty_tensor_that_is_joined_counts_for_the_dtype(dtype: torch.dtype) -> None:
    def joined(device: str) -> torch.Tensor:
        x = torch.arange(6, device=device)
        return torch.cat([torch.empty(0, dtype=dtype, device=device), x[x > 2]])

    assert joined("pjrt").dtype == joined("cpu").dtype
    assert torch.equal(joined("pjrt").cpu(), joined("cpu"))
