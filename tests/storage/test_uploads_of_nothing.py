"""Tensors of no elements: each kind is uploaded once, and they look as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import UnsupportedError
from torch_pjrt.extend import counters, state

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8,
    torch.uint8, torch.uint16, torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip
SHAPES = [(0,), (2, 0, 3), (0, 4), (1, 0)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_looks_as_on_the_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    on_cpu = torch.empty(shape, dtype=dtype, device="cpu").transpose(0, -1)
    on_cpu.to("pjrt")
    torch.empty(shape, dtype=dtype, device="cpu").to("pjrt")
    torch.tensor(on_cpu.tolist(), dtype=dtype, device="pjrt")
    before = counters.uploads

    for here in (
        on_cpu.to("pjrt"),
        on_cpu.to("pjrt", memory_format=torch.contiguous_format),
        torch.tensor(on_cpu.tolist(), dtype=dtype, device="pjrt"),
        torch.empty(shape, dtype=torch.float32, device="cpu").to("pjrt", dtype),
    ):
        assert here.device.type == "pjrt" and here.dtype == dtype and here.numel() == 0
        assert here.cpu().shape == here.shape
    moved = on_cpu.to("pjrt")
    assert (moved.shape, moved.stride()) == (on_cpu.shape, on_cpu.stride())
    assert moved.storage_offset() == 0 and moved.untyped_storage().nbytes() == 0
    assert counters.uploads == before


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "copied",
    [
        torch.clone,
        torch.ops.aten.lift_fresh_copy,
        lambda x: x.clone(memory_format=torch.contiguous_format),
        lambda x: x.clone(memory_format=torch.preserve_format),
    ],
    ids=["clone", "lift_fresh_copy", "contiguous", "preserve"],
)
def test_a_copy_records_nothing(
    copied: Callable[..., torch.Tensor], shape: tuple[int, ...]
) -> None:
    x = torch.empty(shape, device="cpu").to("pjrt").requires_grad_()
    before = state.tape.size

    y = copied(x)

    on_cpu = copied(torch.empty(shape, device="cpu"))
    assert state.tape.size == before
    assert (y.shape, y.stride(), y.dtype) == (on_cpu.shape, on_cpu.stride(), on_cpu.dtype)
    assert y.untyped_storage()._cdata != x.untyped_storage()._cdata
    y.detach().add_(1)
    assert y.sum().item() == x.sum().item() == 0


def test_a_compiled_function_that_begins_with_nothing_is_one_program() -> None:
    """Dynamo runs what is done to it on the device, and keeps it."""

    @torch.compile(backend="pjrt")
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        keys = torch.tensor([], dtype=x.dtype, device=x.device)
        keys = torch.cat([keys, x @ w], dim=-2)
        return keys.sum()

    x = torch.randn(2, 3, 3).to("pjrt")
    w = torch.randn(3, 3).to("pjrt").requires_grad_()
    torch_pjrt.sync()
    compiled = []
    for _ in range(3):
        before = counters.programs_compiled
        step(x, w).backward()
        torch_pjrt.sync()
        w.grad = None
        compiled.append(counters.programs_compiled - before)

    assert compiled[1:] == [0, 0]


def test_what_is_behind_it_counts() -> None:
    """As a cache of keys begins: of nothing, and of what is appended."""
    keys = torch.tensor([], device="pjrt")

    keys = torch.cat([keys, torch.ones(2, 3, device="pjrt")], dim=-2)

    assert keys.tolist() == [[1.0] * 3] * 2
    assert torch.tensor([], device="pjrt", requires_grad=True).sum().item() == 0


def test_nobody_takes_the_memory_of_what_others_have() -> None:
    """Written in place, and in captured steps: the next one is there as ever."""
    first, second = (torch.empty(0, 3, device="cpu").to("pjrt") for _ in range(2))
    for _ in range(3):
        first.add_(1)
        torch_pjrt.sync()
    step = torch_pjrt.capture(lambda x: x.mul_(2))
    for _ in range(4):
        step(torch.empty(0, 3, device="cpu").to("pjrt"))

    for x in (first, second, torch.empty(0, 3, device="cpu").to("pjrt")):
        assert x.cpu().shape == (0, 3) and (x + 1).cpu().shape == (0, 3)


def test_one_that_its_owner_deletes_is_made_anew() -> None:
    x = torch.empty(0, 7, device="cpu").to("pjrt")
    torch_pjrt.to_jax(x).delete()

    assert torch.empty(0, 7, device="cpu").to("pjrt").cpu().shape == (0, 7)


def test_dtype_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="quantized"):
        torch.empty(0, dtype=torch.float32, device="cpu").to("pjrt", torch.quint8)
