"""`multinomial` refuses weights in the CPU's words: at the next read, for only the device has seen them."""

from __future__ import annotations

import math

import pytest
import torch

from sides import DEVICE

REFUSED = {
    "below zero": [1.0, -1.0, 1.0],
    "infinite": [1.0, math.inf, 1.0],
    "nan": [1.0, math.nan, 1.0],
    "nothing": [0.0, 0.0, 0.0],
    "nothing in a row": [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]],
}


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_weights_are_an_error_at_the_next_read(name: str, replacement: bool) -> None:
    weights = torch.tensor(REFUSED[name])
    with pytest.raises(RuntimeError) as theirs:
        torch.multinomial(weights, 2, replacement)

    drawn = torch.multinomial(weights.to(DEVICE), 2, replacement)

    with pytest.raises(RuntimeError) as ours:
        drawn.cpu()
    assert str(ours.value).startswith(str(theirs.value).splitlines()[0])


def test_weights_that_may_be_drawn_by_raise_nothing() -> None:
    weights = torch.tensor([[0.0, 1.0], [2.0, 0.0]], device=DEVICE)

    assert torch.multinomial(weights, 1).tolist() == [[1], [0]]


def test_too_many_classes_are_refused_at_the_call() -> None:
    with pytest.raises(RuntimeError, match=r"number of categories cannot exceed 2\^24"):
        torch.multinomial(torch.ones(2**24 + 1, device=DEVICE), 3)
