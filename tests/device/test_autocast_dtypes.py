"""Within `torch.autocast`, every call gives the dtypes that it gives on CPU."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import pytest
import torch

from autocast_calls import Call, calls_of_lists, calls_of_op_db, dtypes_of
from fixture_types import Run

# Of the operators whose dtypes autocast leaves alone, a part by rotation: all of them take minutes.
PARTS = 10


def differences(calls: Iterable[Call], lower: torch.dtype) -> tuple[dict[str, str], int]:
    """What differs from the CPU, by operator; and how many calls were compared."""
    different, n_calls = {}, 0
    for call in calls:
        n_calls += 1
        ours, theirs = dtypes_of(call, "pjrt", lower), dtypes_of(call, "cpu", lower)
        if ours != theirs:
            different[call[0]] = f"{ours}, on CPU {theirs}"
    return different, n_calls


def test_operators_of_the_lists_give_the_dtypes_of_the_cpu() -> None:
    different, n_calls = differences(calls_of_lists(), torch.bfloat16)
    assert different == {}
    assert n_calls > 30


@pytest.mark.filterwarnings("ignore:.*Sparse.*:UserWarning")
@pytest.mark.parametrize(
    ("given", "lower"),
    [
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
    ],
)
def test_every_operator_gives_the_dtypes_of_the_cpu(given: torch.dtype, lower: torch.dtype) -> None:
    different, n_calls = differences(calls_of_op_db(given, date.today().toordinal(), PARTS), lower)
    assert different == {}
    assert n_calls > 600 / PARTS / 2


REFUSED = """
import warnings, torch
torch.zeros(1, device="pjrt")
with warnings.catch_warnings(record=True) as caught:
    torch.autocast("pjrt", dtype=torch.float64)
print([(w.filename, w.lineno) for w in caught if "target dtype is not supported" in str(w.message)])
"""


def test_a_dtype_that_is_refused_is_warned_of_at_the_line_that_asks(python: Run) -> None:
    """In a process of its own: `torch_xla`, once imported, calls PyTorch's `autocast` itself."""
    assert python(REFUSED).stdout == "[('<string>', 5)]\n"
