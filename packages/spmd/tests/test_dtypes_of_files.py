"""Tensors of each dtype that safetensors has go to a file and come back, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from torch_pjrt_spmd import load_safetensors, save_safetensors

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)


class Holder(nn.Module):
    values: torch.Tensor

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensor_of_each_dtype_is_saved_and_loaded(dtype: torch.dtype, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    values = torch.tensor([[0, 1, 2], [4, 8, 16]]).to(dtype)
    file = tmp_path / "values.safetensors"

    save_safetensors({"values": values.to("pjrt")}, file)

    try:
        theirs = safetensors.load_file(file)["values"]
    except (KeyError, AttributeError):  # a dtype that this safetensors has no name for in PyTorch
        assert dtype == torch.float8_e8m0fnu
    else:
        assert theirs.dtype == dtype
        assert theirs.view(torch.uint8).equal(values.view(torch.uint8))
    holder = Holder(torch.zeros_like(values).to("pjrt"))
    load_safetensors(holder, file)
    assert holder.values.dtype == dtype
    assert holder.values.cpu().view(torch.uint8).equal(values.view(torch.uint8))
