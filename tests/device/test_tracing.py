"""`torch.jit.trace` of what reads values warns as on CPU: once, and of the user's line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -x if x.sum() < 0 else x,
        lambda x: x + x.max().item(),
        lambda x: x * 2 + x.cpu().sum().to(x.device),
    ],
    ids=["bool", "item", "cpu"],
)
def test_a_trace_that_reads_warns_as_on_cpu(function: Callable[..., Any]) -> None:
    def warned(device: str) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            traced: Any = torch.jit.trace(function, torch.ones(3).to(device))
        assert traced(torch.ones(3).to(device)).cpu().equal(function(torch.ones(3)))
        return [f"{w.filename}:{w.lineno} {w.message}" for w in caught]

    assert warned("pjrt") == warned("cpu")
