"""Functions of complex numbers where a part is a zero of either sign, infinite or nan: what the CPU gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import unary_ufuncs

FINITE = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5)
INFINITE = (math.inf, -math.inf, math.nan)
DTYPES = (torch.complex64, torch.complex128)
#   operators left out
OTHERS = {
    "jiterator_unary": "compiles for GPUs",
    "fill":            "is called in another way",
    "reciprocal":      "the CPU's sign of an infinity follows its own way to divide",
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values to real")


def numbers(parts: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([complex(a, b) for a in parts for b in parts], dtype=dtype)


def parts_of(x: torch.Tensor) -> torch.Tensor:
    x = x.cpu().resolve_conj()
    return torch.view_as_real(x) if x.is_complex() else x


def differ(functions: dict[str, Callable[..., Any]], x: torch.Tensor) -> list[str]:
    """Those that do not give the device what they give the CPU; all run as one program."""
    on_device = x.to("pjrt")
    found = {name: f(on_device) for name, f in functions.items()}
    loose = {"rtol": 1e-5, "atol": 1e-6, "equal_nan": True}
    return [
        name
        for name, f in functions.items()
        if not torch.allclose(parts_of(found[name]), parts_of(f(x)), **loose)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_numbers_lie_on_the_right_side_of_branch_cuts(dtype: torch.dtype) -> None:
    functions = {
        op.formatted_name: op
        for op in unary_ufuncs
        if dtype in op.dtypes and op.name not in OTHERS and not op.name.startswith("_refs")
    }

    assert differ(functions, numbers(FINITE, dtype)) == []
    assert len(functions) > 30


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_infinite_in_a_part_has_an_infinite_magnitude(dtype: torch.dtype) -> None:
    functions = {f.__name__: f for f in (torch.abs, torch.log, torch.log2, torch.log10)}

    assert differ(functions, numbers((*FINITE, *INFINITE), dtype)) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_exponentials_may_be_infinite_in_one_part(dtype: torch.dtype) -> None:
    x = torch.tensor([complex(math.inf, 1), complex(math.inf, 3), complex(0, 1)], dtype=dtype)

    assert differ({"logcumsumexp": lambda z: z.logcumsumexp(0)}, x) == []
