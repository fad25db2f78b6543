"""Within `torch.autocast`, every call gives the dtypes that it gives on CPU."""

from __future__ import annotations

import pytest
import torch

from autocast_calls import calls, dtypes_of


@pytest.mark.parametrize(
    ("given", "lower"),
    [
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
    ],
)
def test_every_operator_gives_the_dtypes_of_the_cpu(given: torch.dtype, lower: torch.dtype) -> None:
    different = {}
    n_calls = 0
    for call in calls(given):
        n_calls += 1
        ours, theirs = dtypes_of(call, "pjrt", lower), dtypes_of(call, "cpu", lower)
        if ours != theirs:
            different[call[0]] = f"{ours}, on CPU {theirs}"

    assert different == {}
    assert n_calls > 1000
