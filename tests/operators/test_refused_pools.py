"""`max_pool1d` refuses what the CPU refuses, in its words: PyTorch composes it otherwise elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sides import DEVICE

SHAPES = [
    (),
    (3,),
    (0,),
    (2, 3),
    (2, 0),
    (0, 3),
    (1, 2, 3),
    (0, 2, 3),
    (1, 0, 3),
    (1, 2, 0),
    (1, 2, 3, 4),
]
WAYS: list[dict[str, Any]] = [
    *({"kernel_size": size} for size in (2, 0, -1, 9, (2, 2), ())),
    *({"kernel_size": 2, "stride": stride} for stride in (0, -1, (1, 1))),
    *({"kernel_size": 2, "padding": padding} for padding in (2, -1, (1, 1))),
    *({"kernel_size": 2, "dilation": dilation} for dilation in (0, -1, (1, 1))),
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
]  # fmt: skip
KINDS = [
    (torch.float32, False),
    (torch.float32, True),
    (torch.float16, False),
    (torch.int64, False),
    (torch.bool, False),
    (torch.complex64, False),
]


def outcome(x: torch.Tensor, way: dict[str, Any]) -> Any:
    try:
        return F.max_pool1d(x, **way).tolist()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize(("dtype", "gradient"), KINDS)
def test_calls_end_as_on_the_cpu(dtype: torch.dtype, gradient: bool) -> None:
    differ = []
    for shape in SHAPES:
        for way in WAYS:
            on_cpu = torch.ones(shape, dtype=dtype, requires_grad=gradient)
            there = torch.ones(shape, dtype=dtype, device=DEVICE, requires_grad=gradient)
            if (seen := outcome(there, way)) != (expected := outcome(on_cpu, way)):
                differ.append((shape, way, seen, expected))
    assert not differ
