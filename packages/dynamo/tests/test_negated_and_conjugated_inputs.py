"""Inputs of compiled functions that PyTorch has marked as negated or conjugated: each is as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

MARKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "negated": torch._neg_view,
    "negated twice": lambda x: torch._neg_view(torch._neg_view(x)),
    "a negated view": lambda x: torch._neg_view(x[1]),
    "a view of a negated one": lambda x: torch._neg_view(x)[1],
    "negated and detached": lambda x: torch._neg_view(x).detach(),
    "imaginary parts of conjugates": lambda x: torch.complex(x, x + 1).conj().imag,
    "conjugates": lambda x: torch.complex(x, x + 1).conj(),
    "conjugates, viewed": lambda x: torch.complex(x, x + 1).conj().T,
    "conjugates twice": lambda x: torch.complex(x, x + 1).conj().conj(),
}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a product": lambda x: x * 3,
    "written to": lambda x: x.add_(1) * 2,
    "with views": lambda x: x.reshape(-1)[1:] - 1,
    "none": lambda x: x,
}


def made(name: str, device: str) -> torch.Tensor:
    return MARKED[name](torch.arange(6.0).reshape(2, 3).to(device) + 1)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", MARKED)
def test_it_is_as_on_the_cpu(name: str, function: str) -> None:
    compiled = torch.compile(FUNCTIONS[function], backend="pjrt")
    for _ in range(2):
        x, expected = made(name, "pjrt"), made(name, "cpu")
        y, of_cpu = compiled(x), FUNCTIONS[function](expected)
        torch.testing.assert_close(y.cpu(), of_cpu, rtol=0, atol=0)
        torch.testing.assert_close(x.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", MARKED)
def test_lists_and_compositions_see_the_marks(name: str) -> None:
    x, expected = made(name, "pjrt"), made(name, "cpu")
    plain = torch.ones(3, 3, dtype=expected.dtype)

    for found, of_cpu in zip(
        torch._foreach_mul([x, x], 2.0), torch._foreach_mul([expected, expected], 2.0), strict=True
    ):
        torch.testing.assert_close(found.cpu(), of_cpu, rtol=0, atol=0)
    if expected.shape[-1] == 3:
        torch.testing.assert_close(
            torch.nn.functional.linear(x, plain.to("pjrt")).cpu(),
            torch.nn.functional.linear(expected, plain),
        )
