"""Subclasses of `torch.Tensor` without storage of their own: `as_subclass` of tensors of the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


class Sub(torch.Tensor):
    """As users write one: it changes nothing."""


MADE: dict[str, Callable[[str], torch.Tensor]] = {
    "from the host": lambda device: torch.arange(6.0).to(device),
    "a result": lambda device: torch.arange(6.0, device=device) + 1,
    "a view": lambda device: torch.arange(6.0, device=device)[1:3],
    "a parameter": lambda device: torch.nn.Parameter(torch.arange(6.0, device=device)),
    "negated": lambda device: torch._neg_view(torch.arange(6.0, device=device)),
    "conjugated": lambda device: (torch.arange(6.0, device=device) * 1j).conj(),
    "of no elements": lambda device: torch.zeros(0, 2, device=device),
    "data-dependent": lambda device: torch.tensor([1.0, 0.0, 2.0]).to(device).nonzero(),
    "detached": lambda device: torch.arange(6.0, device=device).detach(),
}


@pytest.mark.parametrize("name", MADE)
def test_a_tensor_as_a_subclass_is_as_on_the_cpu(name: str) -> None:
    x, expected = MADE[name]("pjrt").as_subclass(Sub), MADE[name]("cpu").as_subclass(Sub)

    assert type(x * 2) is type(x.detach()) is Sub
    for found, of_cpu in ((x, expected), (x * 2, expected * 2), (x.detach() + 1, expected + 1)):
        torch.testing.assert_close(
            found.as_subclass(torch.Tensor).cpu(), of_cpu.as_subclass(torch.Tensor)
        )


@pytest.mark.parametrize("name", MADE)
def test_a_tensor_that_moves_keeps_its_class(name: str) -> None:
    x = MADE[name]("cpu").as_subclass(Sub).to("pjrt")

    assert type(x) is Sub
    assert x.device.type == "pjrt"
    assert type(x.cpu()) is Sub
