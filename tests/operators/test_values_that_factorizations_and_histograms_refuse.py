"""Nan and infinities where the CPU refuses them, and numbers that bytes cannot hold: refused in every call.

Each call is made with other valid values first, so that its signature is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Tensor = torch.Tensor
linalg = torch.linalg
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def quantized(x: Tensor) -> Tensor:
    zero_points = x[0, :2].nan_to_num(300).int()
    scales = torch.tensor([0.1, 0.2], device=x.device)
    y = torch.ones(2, 3, device=x.device)
    return torch.fake_quantize_per_channel_affine(y, scales, zero_points, 0, 0, 255)


#   of a matrix that may hold something bad
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "pinv": linalg.pinv,
    "pinverse": torch.pinverse,
    "matrix_rank": linalg.matrix_rank,
    "cond": linalg.cond,
    "nuclear norm": lambda x: linalg.matrix_norm(x, "nuc"),
    "svd": linalg.svd,
    "svdvals": linalg.svdvals,
    "histc": lambda x: torch.histc(x, 4),
    "histc with a range": lambda x: torch.histc(x, 4, 0, 3),
    "histogram": lambda x: torch.histogram(x, 4),
    "histogram with a range": lambda x: torch.histogram(x, 4, range=(0.0, 3.0)),
    "histogramdd": lambda x: torch.histogramdd(x, [2, 2, 2])[0],
    "fake_quantize_per_channel": quantized,
}


def kinds_of_errors(call: Callable[[Tensor], Any], device: str) -> list[str]:
    found = []
    for number in (1.0, 0.5, torch.nan, 2.0, torch.inf, -torch.inf):
        x = torch.eye(3) * 2
        x[0, 1] = x[1, 0] = number
        try:
            result = call(x.to(device))
            for y in result if isinstance(result, tuple) else (result,):
                y.cpu()
        except RuntimeError as error:
            found.append(f"{number}: {type(error).__name__}")
        else:
            found.append(f"{number}: a value")
    return found


@pytest.mark.parametrize("name", CALLS)
def test_bad_values_are_refused_as_on_the_cpu(name: str) -> None:
    assert kinds_of_errors(CALLS[name], "pjrt") == kinds_of_errors(CALLS[name], "cpu")


INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def put(x: Tensor, number: float) -> None:
    x[0] = number


def put_slice(x: Tensor, number: float) -> None:
    x[0:1] = number


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("write", [put, put_slice, torch.Tensor.fill_])
def test_a_number_that_the_dtype_cannot_hold_is_refused_as_on_the_cpu(
    write: Callable[[Tensor, float], Any], dtype: torch.dtype
) -> None:
    def outcome(device: str, number: float) -> Any:
        x = torch.zeros(3, dtype=dtype, device=device)
        try:
            write(x, number)
        except RuntimeError as error:
            return str(error)
        return x.tolist()

    for number in (3, 7, 3000, -1, -300, 70000, 1 << 40, 2.5, 1e30):
        assert outcome("pjrt", number) == outcome("cpu", number), number
