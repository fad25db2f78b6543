"""Tensors of no elements: each kind is uploaded once, and they look as on the CPU."""

from __future__ import annotations

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import UnsupportedError
from torch_pjrt.extend import counters

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
