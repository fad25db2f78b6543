"""Every dtype is the real one, and promotion is PyTorch's, Python numbers included."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import torch_pjrt

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
PYTHON_NUMBERS = [True, 3, 2.5, 1 + 2j]
ARITHMETIC: list[Callable[[Any, Any], Any]] = [operator.add, operator.mul, operator.truediv]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_survive_the_journey(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 0, 3]).to(dtype)

    y = x.to("pjrt")

    assert y.dtype == dtype
    assert torch.equal(y.cpu(), x)
    assert torch.equal((y + y).cpu(), x + x)


def test_int64_holds_what_int32_cannot() -> None:
    assert (torch.tensor([2**40], device="pjrt") * 3).item() == 3 * 2**40
    assert torch.arange(2**33, 2**33 + 2, device="pjrt").tolist() == [2**33, 2**33 + 1]


def test_float64_is_exact_to_its_last_bit() -> None:
    x = torch.tensor([1 / 3], dtype=torch.float64, device="pjrt")

    assert (x * x).item() == (1 / 3) ** 2
    assert (x + 1e-15).item() == 1 / 3 + 1e-15


def test_int64_overflow_wraps_as_on_cpu() -> None:
    x = torch.tensor([2**63 - 1])

    assert (x.to("pjrt") + 1).tolist() == (x + 1).tolist()


def test_integers_add_up_in_int64() -> None:
    x = torch.full((300,), 127, dtype=torch.int8, device="pjrt")

    assert x.sum().dtype == torch.int64
    assert x.sum().item() == 300 * 127


def test_bfloat16_and_float16_round_as_on_cpu() -> None:
    x = torch.linspace(-3, 3, 50)

    for dtype in (torch.bfloat16, torch.float16):
        expected = x.to(dtype) * 1.1 + x.to(dtype)
        assert torch.equal((x.to("pjrt", dtype) * 1.1 + x.to("pjrt", dtype)).cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_conversion_gives_what_the_cpu_gives(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.5, 2.5, 100.0])

    assert torch.equal(x.to("pjrt").to(dtype).cpu(), x.to(dtype))
    assert torch.equal(
        x.to("pjrt").to(dtype).to(torch.complex64).cpu(), x.to(dtype).to(torch.complex64)
    )


def cpu_computes(dtype: torch.dtype) -> list[Callable[[Any, Any], Any]]:
    """The CPU cannot divide complex numbers of half precision."""
    refused = [operator.truediv] if dtype == torch.complex32 else []
    return [compute for compute in ARITHMETIC if compute not in refused]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("compute", ARITHMETIC)
def test_two_dtypes_promote_as_on_cpu(compute: Callable[[Any, Any], Any]) -> None:
    pairs = [
        (torch.full((2,), 3).to(one), torch.full(shape, 2).to(other))
        for one, other, shape in itertools.product(DTYPES, DTYPES, ((2,), ()))
    ]
    pairs = [(x, y) for x, y in pairs if compute in cpu_computes(torch.result_type(x, y))]

    results = [compute(x.to("pjrt"), y.to("pjrt")) for x, y in pairs]
    torch_pjrt.sync()

    for (x, y), result in zip(pairs, results, strict=True):
        torch.testing.assert_close(result.cpu(), compute(x, y))


@pytest.mark.slow("rows")
@pytest.mark.parametrize("number", PYTHON_NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_python_number_promotes_as_on_cpu(dtype: torch.dtype, number: complex) -> None:
    x = torch.ones(2, dtype=dtype)
    for compute in cpu_computes(torch.result_type(x, number)):
        expected = [compute(x, number), compute(number, x)]
        ours = [compute(x.to("pjrt"), number), compute(number, x.to("pjrt"))]

        for got, wanted in zip(ours, expected, strict=True):
            torch.testing.assert_close(got.cpu(), wanted)


def test_bool_takes_part_in_arithmetic_as_on_cpu() -> None:
    x = torch.tensor([True, False, True])

    for f in (
        lambda t: t.sum(),
        lambda t: t + t,
        lambda t: t * 2,
        lambda t: ~t,
        lambda t: t.cumsum(0),
    ):
        torch.testing.assert_close(f(x.to("pjrt")).cpu(), f(x))


def test_default_dtype_is_asked_at_each_call() -> None:
    x = torch.tensor([1, 2], device="pjrt")
    before = (x / 2).dtype

    torch.set_default_dtype(torch.float64)
    try:
        after = (x / 2).dtype, torch.ones(1, device="pjrt").dtype
    finally:
        torch.set_default_dtype(torch.float32)

    assert before == torch.float32
    assert after == (torch.float64, torch.float64)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.ones(2, device=device),
        lambda device: torch.linspace(0, 1, 3, device=device),
        lambda device: torch.full((2,), 0.3, device=device),
        lambda device: torch.eye(2, device=device),
        lambda device: torch.kaiser_window(3, device=device),
        lambda device: torch.arange(3, device=device) / 2,
        lambda device: torch.arange(3, device=device) * 1.5,
        lambda device: torch.arange(3, device=device).sin(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_is_that_of_the_call_not_of_the_run(
    make: Callable[[str], torch.Tensor], dtype: torch.dtype
) -> None:
    with default_dtype(dtype):
        x, on_cpu = make("pjrt"), make("cpu")
    y = make("pjrt")

    torch.testing.assert_close(x.cpu(), on_cpu)
    torch.testing.assert_close(y.cpu(), make("cpu"))


def test_complex_numbers_have_the_default_precision_of_the_call() -> None:
    with default_dtype(torch.float64):
        x = torch.full((2,), 0.3j, device="pjrt")
    y = torch.full((2,), 0.3j, device="pjrt")

    assert (x.dtype, x.tolist()) == (torch.complex128, [0.3j, 0.3j])
    assert torch.equal(y.cpu(), torch.full((2,), 0.3j))


def test_numbers_are_compared_in_the_default_dtype_of_the_call() -> None:
    x = torch.tensor([2**24 + 1], device="pjrt")
    single = (x > 2**24 + 0.5).item()  # both are 2**24 as float32
    with default_dtype(torch.float64):
        double = x > 2**24 + 0.5

    assert not single
    assert double.item()
    assert not (x > 2**24 + 0.5).item()


def test_complex_numbers_compute_as_on_cpu() -> None:
    z = torch.tensor([1 + 2j, -3j, 0.5 + 0j])

    for f in (torch.abs, torch.angle, torch.conj, torch.exp, lambda t: t @ t, lambda t: t * 1j):
        torch.testing.assert_close(f(z.to("pjrt")).cpu(), f(z))


def test_dtype_that_xla_lacks_is_refused_by_name_at_the_call() -> None:
    with pytest.raises(TypeError, match="float4_e2m1fn_x2"):
        torch.empty(2, dtype=torch.float4_e2m1fn_x2, device="pjrt")
    with pytest.raises(NotImplementedError, match="Float4_e2m1fn_x2"):
        torch.ops.aten.ones.default([2], dtype=torch.float4_e2m1fn_x2, device="pjrt")


def test_a_quotient_of_a_quotient_is_rounded_to_halves_as_on_cpu() -> None:
    x = torch.tensor([0.0033, -0.011, 300.0]).half()

    def divided(x: torch.Tensor) -> torch.Tensor:
        return (x / x) / x - 1 / x

    torch.testing.assert_close(divided(x.to("pjrt")).cpu(), divided(x), rtol=0, atol=0)
