"""Arguments of captured steps that PyTorch has marked as negated or conjugated are other arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_pjrt

MARKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x + 0,
    "negated": torch._neg_view,
    "plain complex": lambda x: torch.complex(x, x + 1),
    "conjugated": lambda x: torch.complex(x, x + 1).conj(),
    "imaginary parts of conjugates": lambda x: torch.complex(x, x + 1).conj().imag,
}


@pytest.mark.parametrize("second", MARKED)
@pytest.mark.parametrize("first", MARKED)
def test_a_step_is_replayed_for_what_it_was_recorded_with(first: str, second: str) -> None:
    step = torch_pjrt.capture(lambda x: x * 3)
    for name in (*[first] * 5, *[second] * 5, first):
        x, expected = (MARKED[name](torch.arange(3.0).to(device)) for device in ("pjrt", "cpu"))
        torch.testing.assert_close(step(x).cpu(), expected * 3, rtol=0, atol=0)
    assert step.replays >= 2
