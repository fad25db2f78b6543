"""The sign of nothing, what a float below 0 is without a sign, and both parts of random complex numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

NOTHING = [-0.0, 0.0, float("nan"), -3.0, 1e-30]


@pytest.mark.parametrize("function", [torch.sign, torch.sgn])
def test_nothing_has_the_sign_of_plus(function: Callable[[torch.Tensor], torch.Tensor]) -> None:

    expected = function(torch.tensor(NOTHING))

    actual = function(torch.tensor(NOTHING, device="pjrt")).cpu()

    assert actual.tolist() == expected.tolist()
    assert actual.signbit().tolist() == expected.signbit().tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
def test_a_float_below_zero_wraps_around(source: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.tensor([-1.0, -7.5, 5.7, 0.0], dtype=source)

    assert x.to("pjrt").to(dtype).cpu().tolist() == x.to(dtype).tolist()


@pytest.mark.parametrize("draw", ["uniform_", "rand", "out"])
def test_both_parts_of_complex_numbers_are_drawn(draw: str) -> None:
    x = torch.zeros(50, dtype=torch.complex64, device="pjrt")
    if draw == "uniform_":
        x.uniform_()
    elif draw == "out":
        torch.rand(50, out=x)
    else:
        x = torch.rand(50, dtype=torch.complex64, device="pjrt")

    assert (x.real != x.imag).all()
    assert x.imag.max() > 0.5
    assert ((x.imag >= 0) & (x.imag < 1)).all()


def test_complex_numbers_are_told_apart_by_the_sign_of_zero() -> None:
    values = [torch.full((1,), complex(1, zero), device="pjrt").cpu() for zero in (0.0, -0.0)]
    assert [bool(torch.signbit(v.imag)) for v in values] == [False, True]
