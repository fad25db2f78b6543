"""Sparse gradients and nested tensors are refused, and the error says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt.errors import UnsupportedError


def backward_of(module: nn.Module) -> None:
    module(torch.tensor([[1, 2]], device="pjrt")).sum().backward()


def numbers(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="pjrt")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "gradient of an embedding": (
        lambda: backward_of(nn.Embedding(5, 3, sparse=True, device="pjrt")),
        "leave `sparse=True` out",
    ),
    "gradient of an embedding bag": (
        lambda: backward_of(nn.EmbeddingBag(5, 3, sparse=True, mode="sum", device="pjrt")),
        "leave `sparse=True` out",
    ),
    "nested tensor": (
        lambda: torch.nested.nested_tensor([numbers(3), numbers(2)]).to_padded_tensor(0.0),
        "cannot be nested",
    ),
}


@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refusal_says_what_to_do(name: str) -> None:
    attempt, text = REFUSED[name]

    with pytest.raises(UnsupportedError, match=text):
        attempt()


def test_jagged_tensor_works() -> None:
    jagged = torch.nested.nested_tensor([numbers(2, 3), numbers(4, 3)], layout=torch.jagged)

    assert [t.sum().item() for t in (jagged * 2).unbind()] == [12, 24]


def test_jagged_tensor_is_compiled() -> None:
    double = torch.compile(lambda x: x.relu() * 2)
    found = []
    for lengths in ((2, 4), (1, 3, 5)):
        parts = [torch.ones(n, 3, device="pjrt") for n in lengths]
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        found.append([t.sum().item() for t in double(jagged).unbind()])

    assert found == [[12, 24], [6, 18, 30]]


@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
def test_padded_jagged_tensor_has_gradients() -> None:
    parts = [torch.ones(n, 3, device="pjrt", requires_grad=True) for n in (2, 4)]
    jagged = torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    (jagged.to_padded_tensor(0.0) * 2).sum().backward()

    assert [p.grad.sum().item() for p in parts if p.grad is not None] == [12, 24]
