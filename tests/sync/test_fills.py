"""Arrays that hold one number throughout need no program; what else there is to be run makes one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from torch_pjrt.extend import value_of
from torch_pjrt.run import fills

Make = Callable[[str], torch.Tensor]

FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
NUMBERS: dict[Any, tuple[Any, ...]] = {
    **dict.fromkeys(FLOATS, (0, 1, -0.0, 0.1, -7.5, 1e-40, 1e30, math.inf, -math.inf, math.nan, True)),
    **dict.fromkeys(HALVES, (0, 1, -0.0, 1.0)),
    **dict.fromkeys(INTEGERS, (0, 1, 100, True)),
    torch.int64: (-1, 2**40, -(2**63)),
    torch.bool: (True, False, 0, 1),
}  # fmt: skip
FILLS = [(dtype, number) for dtype, numbers in NUMBERS.items() for number in numbers]
# Others are filled by a program: their rounding is the lowering's business.
BY_PROGRAM = [
    *[(dtype, number) for dtype in HALVES for number in (0.1, 3, math.inf, math.nan)],
    *[(torch.complex64, number) for number in (0, 1.5, 2j)],
    (torch.int32, 2.7),
]
SHAPES = ((), (3,), (2, 0), (2, 3, 4, 5))


def bits(x: torch.Tensor) -> bytes:
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def ways(dtype: torch.dtype, number: Any, shape: tuple[int, ...]) -> dict[str, Make]:
    """All of PyTorch's ways to make such a tensor."""
    found: dict[str, Make] = {
        "full": lambda device: torch.full(shape, number, dtype=dtype, device=device),
        "full_like": lambda device: torch.full_like(torch.empty(shape, device=device), number, dtype=dtype),
        "new_full": lambda device: torch.empty(1, device=device).new_full(shape, number, dtype=dtype),
        "fill_": lambda device: torch.empty(shape, dtype=dtype, device=device).fill_(number),
    }  # fmt: skip
    if number in (0, 1) and bits(torch.tensor(number, dtype=dtype)) == bits(
        torch.tensor(int(number), dtype=dtype)
    ):
        name = "ones" if number else "zeros"
        of_shape, like = getattr(torch, name), getattr(torch, f"{name}_like")
        found[name] = lambda device: of_shape(shape, dtype=dtype, device=device)
        found[f"{name}_like"] = lambda device: like(torch.empty(shape, dtype=dtype, device=device))
        found[f"new_{name}"] = lambda device: getattr(torch.empty(1, device=device), f"new_{name}")(
            shape, dtype=dtype
        )
    if not shape:
        found["scalar_tensor"] = lambda device: torch.scalar_tensor(
            number, dtype=dtype, device=device
        )
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "number"), FILLS, ids=str)
def test_it_is_filled_as_on_the_cpu_without_a_program(
    dtype: torch.dtype, number: Any, shape: tuple[int, ...], compiled: Count
) -> None:
    for name, make in ways(dtype, number, shape).items():
        x, expected = make("pjrt"), make("cpu")
        torch_pjrt.sync()

        assert x.dtype == expected.dtype, name
        assert bits(x.cpu()) == bits(expected), name
    assert compiled() == 0


@pytest.mark.parametrize(("dtype", "number"), BY_PROGRAM, ids=str)
def test_other_numbers_are_filled_by_a_program(
    dtype: torch.dtype, number: Any, compiled: Count
) -> None:
    x = torch.full((2, 3), number, dtype=dtype, device="pjrt")
    torch_pjrt.sync()

    expected = torch.full((2, 3), number, dtype=dtype)
    torch.testing.assert_close(x.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    assert compiled() == 1


def test_it_keeps_the_strides() -> None:
    like = torch.empty(2, 3, 4, 5, device="pjrt").to(memory_format=torch.channels_last)

    x = torch.full_like(like, 2.0)
    torch_pjrt.sync()

    assert x.stride() == like.stride()
    assert torch.equal(x[:, 1].cpu(), torch.full((2, 4, 5), 2.0))


def test_each_array_has_memory_of_its_own_which_a_program_may_take() -> None:
    tensors = [torch.zeros(1000, device="pjrt") for _ in range(3)]
    torch_pjrt.sync()
    addresses = [value_of(x).array.unsafe_buffer_pointer() for x in tensors]
    assert len(set(addresses)) == 3

    for n, x in enumerate(tensors):
        x.add_(n)
    torch_pjrt.sync()

    assert {value_of(x).array.unsafe_buffer_pointer() for x in tensors} == set(addresses)
    assert [x.sum().item() for x in tensors] == [0, 1000, 2000]


@pytest.mark.parametrize("n_more", [0, 1])
def test_large_arrays_are_filled_on_the_device(
    n_more: int, compiled: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fills, "_MOST_BYTES", 4 * 10)

    x, y = torch.ones(4, device="pjrt"), torch.ones(6 + n_more, device="pjrt")
    torch_pjrt.sync()

    assert compiled() == n_more
    assert (x.sum() + y.sum()).item() == 10 + n_more


def test_what_else_is_to_be_run_is_in_a_program_with_them(compiled: Count) -> None:
    x = torch.ones(4, device="pjrt")
    y = torch.arange(3, device="pjrt")
    torch_pjrt.sync()

    assert compiled() == 1
    assert x.tolist() == [1] * 4
    assert y.tolist() == [0, 1, 2]


def test_what_nobody_holds_is_not_made() -> None:
    before = torch_pjrt.report().as_dict()["uploads"]

    torch.ones(4, device="pjrt")
    x = torch.ones(4, device="pjrt")
    torch_pjrt.sync()

    assert torch_pjrt.report().as_dict()["uploads"] == before + 1
    assert x.tolist() == [1] * 4


def test_a_captured_step_fills_in_each_replay() -> None:
    weight = torch.ones(3).to("pjrt")

    @torch_pjrt.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(3, device="pjrt")
        torch_pjrt.sync()
        return total.add_(x * weight)

    found = [step(torch.full((3,), float(n)).to("pjrt")).tolist() for n in range(6)]

    assert found == [[n] * 3 for n in range(6)]
