"""The norm of one element is its magnitude, also where a power of it would be infinite or 0."""

from __future__ import annotations

import pytest
import torch

ORDERS = (0, 1, 2, 3, 0.5, -1, -2, float("inf"), -float("inf"))
SHAPES: list[tuple[tuple[int, ...], list[int] | None]] = [
    ((), None),
    ((1,), [0]),
    ((1, 3), [0]),
    ((3, 1), [1]),
    ((1, 1), None),
    ((1, 1), []),
    ((3,), [0]),
]
# A number whose square is infinite, and one whose square is 0.
EXTREMES = {
    torch.float16: (6e4, 1e-4),
    torch.bfloat16: (1e25, 1e-25),
    torch.float32: (1e25, 1e-25),
    torch.float64: (1e200, 1e-200),
    torch.complex64: (1e25, 1e-25),
}


@pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning")
@pytest.mark.parametrize("dtype", EXTREMES, ids=str)
def test_norm_is_that_of_the_cpu(dtype: torch.dtype) -> None:
    """In one program with what made the elements: there XLA does not simplify the root of a square."""

    def norms(device: str) -> list[torch.Tensor]:
        made = [
            (torch.full(shape, -number / 2, dtype=dtype).to(device) * 2, dims)
            for number in EXTREMES[dtype]
            for shape, dims in SHAPES
        ]
        return [torch.linalg.vector_norm(x, order, dims) for x, dims in made for order in ORDERS]

    torch.testing.assert_close([x.cpu() for x in norms("pjrt")], norms("cpu"))
