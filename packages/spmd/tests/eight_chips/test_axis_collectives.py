"""Collectives by the name of an axis in every dtype, of NaNs, infinities and the ends of integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_shard_map import COLLECTIVES, on_mesh_and_by_hand
from test_special_values import DTYPES, FLOATS, special

from torch_pjrt.errors import UnsupportedError

COMPLEX = (torch.complex64, torch.complex128)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
SUMS = ("psum", "pmean", "reduce_scatter", "reduce_scatter, dim 1")
LARGEST = ("pmax", "pmin")


def data(dtype: torch.dtype) -> torch.Tensor:
    if dtype in COMPLEX:  # finite: PyTorch's CPU adds 1 * x, which has NaNs beside an infinity
        x = special(torch.float32).nan_to_num(3, 2, -2)
        return torch.complex(x, x.flip(0)).to(dtype)
    return special(torch.float32).to(dtype) if dtype in EIGHT_BITS else special(dtype)


def refused(name: str, dtype: torch.dtype) -> bool:
    return (name in SUMS and dtype == torch.bool) or (name in LARGEST and dtype in COMPLEX)


def compared_as(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in EIGHT_BITS else x


CASES = [
    (name, dtype)
    for dtype in (*DTYPES, *COMPLEX, *EIGHT_BITS)
    for name in COLLECTIVES
    if name not in (*SUMS, *LARGEST) or dtype not in EIGHT_BITS  # PyTorch's CPU only moves these
]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{n} of {str(d)[6:]}" for n, d in CASES])
def test_collectives_of_special_values_are_those_of_the_parts(
    name: str, dtype: torch.dtype
) -> None:
    x = data(dtype)
    if refused(name, dtype):
        with pytest.raises(UnsupportedError, match="over chips"):
            on_mesh_and_by_hand(name, x.to("pjrt"))
        return

    found, expected, _ = on_mesh_and_by_hand(name, x.to("pjrt"))

    assert found.dtype == (expected.dtype if name != "pmean" else found.dtype)
    torch.testing.assert_close(
        compared_as(found.cpu()), compared_as(expected.detach()), equal_nan=True
    )


GRADIENTS = [(name, dtype) for dtype in FLOATS for name in COLLECTIVES]


@pytest.mark.parametrize(
    ("name", "dtype"), GRADIENTS, ids=[f"{n} of {str(d)[6:]}" for n, d in GRADIENTS]
)
def test_gradients_at_special_values_are_those_of_the_parts(name: str, dtype: torch.dtype) -> None:
    x = data(dtype).to("pjrt").requires_grad_()
    found, expected, host = on_mesh_and_by_hand(name, x)
    weights: Any = (torch.arange(expected.numel()) % 7 - 3).reshape(expected.shape).to(dtype)

    (found * weights.to("pjrt")).sum().backward()
    (expected * weights).sum().backward()

    assert x.grad is not None and host.grad is not None
    torch.testing.assert_close(x.grad.cpu(), host.grad, equal_nan=True)
