"""Reports have a row for each function of the package that a program calls, and why no kernel took it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt_kernels import flash_attention, paged_attention, ragged_paged_attention, rotary


def zeros(*shape: int) -> Any:
    return torch.zeros(shape, device="pjrt")


def counts(*numbers: int) -> Any:
    return torch.tensor(numbers, device="pjrt").int()


def attended(shape: tuple[int, ...], **form: Any) -> torch.Tensor:
    x = zeros(*shape)
    return flash_attention(x, x, x, **form)


LONG, SHORT, PAGES = (1, 4, 1024, 8), (1, 4, 64, 8), (8, 16, 2, 8)
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "flash": (
        lambda: attended(LONG),
        "1 x 4 x 1024 1 x 4 x 1024 flash_attention, in blocks JAX's splash kernel: it is for TPUs",
    ),
    "flash of few": (
        lambda: attended(SHORT, soft_cap=3.0),
        "flash_attention, all scores at once",
    ),
    "paged": (
        lambda: paged_attention(
            zeros(3, 1, 4, 8), zeros(*PAGES), zeros(*PAGES), zeros(3, 2).int(), counts(5, 6, 7)
        ),
        "3 x 4 x 1 3 x 2 x 32 paged_attention, some pages at a time",
    ),
    "ragged": (
        lambda: ragged_paged_attention(
            zeros(3, 4, 8), zeros(*PAGES), zeros(*PAGES), zeros(1, 2).int(), counts(5), counts(0, 3)
        ),
        "ragged_paged_attention, in blocks JAX's ragged kernel: keys and values lie in arrays",
    ),
    "ragged, joint": (
        lambda: ragged_paged_attention(
            zeros(3, 4, 8), zeros(*PAGES), None, zeros(1, 2).int(), counts(5), counts(0, 3)
        ),
        "ragged_paged_attention, in blocks JAX's ragged kernel: it multiplies in bfloat16",
    ),
    "rotary": (
        lambda: rotary(zeros(1, 4, 16, 8), zeros(16, 8), zeros(16, 8)),
        "rotary, XLA's fusions the package's kernel: 16 positions of 8",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_its_row(name: str) -> None:
    call, expected = CALLS[name]

    text = " ".join(str(torch_pjrt.explain(call)).split())

    assert expected in text, text[-900:]
