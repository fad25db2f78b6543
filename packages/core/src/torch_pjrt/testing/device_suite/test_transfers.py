"""Tensors of each dtype come back as they went."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torch_pjrt import dtypes

# What some device may have: bits of any kind go there and back.
DTYPES = [*dtypes.CARRIED_AS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32]
DTYPES += [torch.uint16, torch.uint32, torch.uint64, torch.int64, torch.float16, torch.float32]
DTYPES += [torch.float64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_tensor_goes_there_and_back(dtype: torch.dtype, pjrt_kind: Callable[[str], None]) -> None:
    pjrt_kind("transfers")
    torch.zeros((), device="pjrt")  # which dtypes there are is known once the device has started
    if not dtypes.is_supported(dtype):
        pytest.skip(f"the device has no {dtype}")
    host = (torch.arange(24) % 5 - (2 if dtype.is_signed else 0)).view(2, 3, 4).to(dtype)

    back = host.to("pjrt").transpose(0, 2).cpu()

    assert back.dtype == dtype
    assert torch.equal(back.to(torch.complex128), host.transpose(0, 2).to(torch.complex128))
