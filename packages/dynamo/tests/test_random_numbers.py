"""Random numbers in compiled graphs are those of the device's generator, as without a compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def dropped(x: torch.Tensor) -> torch.Tensor:
    x = nn.functional.dropout(x, 0.5)
    return x + torch.rand_like(x) + nn.functional.dropout(x, 0.25)


def test_they_differ_between_calls_and_repeat_after_manual_seed() -> None:
    x = torch.ones(64, device="pjrt")
    compiled = torch.compile(dropped, backend="pjrt")

    torch.manual_seed(5)
    first, second = compiled(x).tolist(), compiled(x).tolist()
    torch.manual_seed(5)
    again = compiled(x).tolist()

    assert first == again
    assert first != second


def test_they_are_those_that_are_drawn_without_a_compiler() -> None:
    x = torch.ones(64, device="pjrt")
    compiled = torch.compile(dropped, backend="pjrt")

    def several(function: Any) -> list[list[float]]:
        torch.manual_seed(7)
        return [
            torch.rand(3, device="pjrt").tolist(),
            function(x).tolist(),
            torch.rand(3, device="pjrt").tolist(),
            function(x).tolist(),
        ]

    assert several(compiled) == several(dropped)


def test_two_calls_in_one_program_draw_other_numbers(programs: Any) -> None:
    x = torch.ones(64, device="pjrt")
    compiled = torch.compile(dropped, backend="pjrt")
    compiled(x).tolist()
    programs.forget()

    first, second = compiled(x), compiled(x)

    assert first.tolist() != second.tolist()
    assert programs.run == 1


def test_backward_sees_the_mask_of_forward() -> None:
    x = torch.ones(64, device="pjrt", requires_grad=True)
    compiled = torch.compile(lambda x: nn.functional.dropout(x, 0.5), backend="pjrt")

    y = compiled(x)
    y.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == y.tolist()


@pytest.mark.parametrize("budget", [0, 0.1, 0.5])
def test_backward_sees_the_mask_of_forward_within_a_budget(budget: float) -> None:
    x = torch.ones(64, device="pjrt", requires_grad=True)
    drop = torch.compile(
        lambda x: nn.functional.dropout(x.sin().asin(), 0.5) * torch.rand_like(x),
        backend="pjrt",
        options=dict[str, Any](memory_budget=budget),
    )

    y = drop(x)
    y.sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())


def test_a_program_on_the_host_draws_by_normal() -> None:
    compiled = torch.compile(lambda x: x + torch.normal(3.0, 0.5, (1000,)), backend="pjrt")
    x = torch.zeros(1000)

    torch.manual_seed(5)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(5)
    again = compiled(x)

    assert first.tolist() == again.tolist()
    assert first.tolist() != second.tolist()
    assert abs(float(first.mean()) - 3) < 0.1
    assert abs(float(first.std()) - 0.5) < 0.1


def test_a_program_on_the_host_draws_by_normal_around_tensors() -> None:
    compiled = torch.compile(lambda x: torch.normal(x, 0.001), backend="pjrt")

    torch.testing.assert_close(compiled(torch.arange(5.0)), torch.arange(5.0), atol=0.1, rtol=0)


def checkpointed(dropout: float) -> list[torch.Tensor]:
    """A checkpointed attention and dropout compiled: the loss, and gradients."""
    torch.manual_seed(3)
    x = torch.randn(2, 2, 8, 4).to("pjrt").requires_grad_()

    def layer(x: torch.Tensor) -> torch.Tensor:
        mixed = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropout)
        return nn.functional.dropout(mixed.sin(), dropout) if dropout else mixed.sin()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, x * 2, use_reentrant=False).square().sum()

    loss = torch.compile(loss_of, backend="pjrt")(x)
    loss.backward()
    assert x.grad is not None
    wanted = x.detach().requires_grad_()
    torch.manual_seed(3)
    torch.randn(2, 2, 8, 4)
    return [loss.detach().cpu(), x.grad.cpu(), *_eager(loss_of, wanted)]


def _eager(loss_of: Any, x: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(x)
    loss.backward()
    assert x.grad is not None
    return [loss.detach().cpu(), x.grad.cpu()]


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_checkpointed_parts_compute_again_with_the_numbers_of_forward(dropout: float) -> None:
    loss, gradient, wanted_loss, wanted_gradient = checkpointed(dropout)

    torch.testing.assert_close(loss, wanted_loss)
    torch.testing.assert_close(gradient, wanted_gradient)
