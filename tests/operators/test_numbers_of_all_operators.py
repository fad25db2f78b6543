"""Operators of tensors and one Python number: each number of each kind gives what it gives on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUMBERS = (True, False, 2, 1.5)
DTYPES = (
    *(torch.bool, torch.uint8, torch.int64),
    *(torch.float32, torch.bfloat16, torch.complex64),
)


def operators() -> Iterator[tuple[Any, list[str]]]:
    """Those that take tensors and numbers and nothing else, with the kinds of their arguments."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            needed = [a for a in op._schema.arguments if not a.has_default_value()]
            kinds = [str(a.type) for a in needed]
            if {*kinds} == {"Tensor", "number"} and not any(a.kwarg_only for a in needed):
                yield op, kinds


def called(op: Callable[..., Any], given: list[Any], device: str) -> list[Any] | Exception:
    try:
        results = op(
            *[x.to(device, copy=True) if isinstance(x, torch.Tensor) else x for x in given]
        )
        return [x.cpu() if isinstance(x, torch.Tensor) else x for x in tree_leaves(results)]
    except Exception as error:
        return error


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_of_all_operators(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1] if dtype is torch.bool else [1, 2, 3]).to(dtype)
    differing: list[str] = []
    tried = 0
    for op, kinds in operators():
        for number in NUMBERS:
            given = [x if kind == "Tensor" else number for kind in kinds]
            theirs, ours = called(op, given, "cpu"), called(op, given, "pjrt")
            tried += 1
            if isinstance(theirs, Exception) or isinstance(ours, Exception):
                if isinstance(theirs, Exception) != isinstance(ours, Exception):
                    differing.append(f"{op}, {number!r}: {ours!r}, not {theirs!r}")
                continue
            try:
                torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3, equal_nan=True)
            except AssertionError as error:
                differing.append(f"{op}, {number!r}: {error}")

    assert not differing, "\n".join(differing)
    assert tried > 400
