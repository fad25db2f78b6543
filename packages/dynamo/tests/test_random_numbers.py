"""Random numbers in compiled graphs are those of the device's generator, as without a compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


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
