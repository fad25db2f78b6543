"""Samples for lowering/conv.py.

The overrideable operators have no CPU kernel of their own: here they get one, the plain operators'.
"""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
cpu = torch.library.Library("aten", "IMPL")


def _backward(grad: Any, x: Any, weight: Any, *rest: Any) -> Any:
    return aten.convolution_backward(grad, x, weight, [grad.shape[1]], *rest)


cpu.impl("convolution_overrideable", aten.convolution, "CPU")
cpu.impl("convolution_backward_overrideable", _backward, "CPU")


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


#   input             weight            stride  padding dilation transposed output_padding groups
CALLS = [
    ((2, 4, 9), (6, 4, 3), [1], [0], [1], False, [0], 1),
    ((2, 4, 9), (6, 2, 3), [2], [1], [2], False, [0], 2),
    ((2, 3, 8, 7), (5, 3, 3, 2), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ((2, 3, 8, 7), (5, 3, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
    ((2, 4, 9, 9), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    ((2, 4, 9, 9), (8, 2, 3, 3), [2, 1], [1, 2], [2, 3], False, [0, 0], 2),
    ((2, 3, 4, 5, 6), (4, 3, 2, 3, 2), [1, 2, 1], [0, 1, 1], [1, 1, 2], False, [0, 0, 0], 1),
    ((2, 4, 5), (4, 3, 3), [2], [1], [1], True, [1], 1),
    ((2, 4, 5, 6), (4, 3, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
    ((2, 4, 5, 6), (4, 3, 3, 2), [3, 2], [0, 1], [1, 2], True, [2, 0], 2),
    ((2, 4, 5), (4, 3, 3), [1], [1], [2], True, [1], 1),
    ((1, 4, 3, 4, 3), (4, 2, 2, 3, 2), [2, 1, 2], [0, 1, 0], [1, 1, 1], True, [0, 0, 1], 2),
]  # fmt: skip
WIDER = {
    torch.float32: (2e-5, 2e-5),
    torch.bfloat16: (1.6e-2, 2e-2),
    torch.float64: (1e-7, 1e-7),
}


def forwards(dtype: torch.dtype) -> list[Sample]:
    rtol, atol = WIDER[dtype]
    return [
        Sample(
            op,
            (normal(*x, dtype=dtype), normal(*w, dtype=dtype), bias, *rest),
            rtol=rtol,
            atol=atol,
            why="sums of up to 72 terms in another order",
        )
        for x, w, *rest in CALLS
        for op in (aten.convolution.default, aten.convolution_overrideable.default)
        for bias in (None, normal(w[1] * rest[-1] if rest[3] else w[0], dtype=dtype))
    ]


def backwards(dtype: torch.dtype) -> list[Sample]:
    rows: list[Sample] = []
    rtol, atol = WIDER[dtype]
    for x_shape, w_shape, *rest in CALLS:
        x, w = normal(*x_shape, dtype=dtype), normal(*w_shape, dtype=dtype)
        y = aten.convolution(x, w, None, *rest)
        grad = normal(*y.shape, dtype=dtype)
        mask = [True, True, True]
        plain = (grad, x, w, [y.shape[1]], *rest, mask)
        for op, args in (
            (aten.convolution_backward.default, plain),
            (aten.convolution_backward_overrideable.default, (grad, x, w, *rest, mask)),
        ):
            rows.append(
                Sample(
                    op,
                    args,
                    rtol=rtol,
                    atol=atol,
                    why="sums of many terms in another order",
                )
            )
    return rows


SAMPLES: list[Sample] = [
    *forwards(torch.float32),
    *backwards(torch.float32),
    *forwards(torch.float64)[::8],
    *backwards(torch.float64)[::6],
    *forwards(torch.bfloat16)[::8],
    # One stride for all dims, as C++ callers may give it.
    sample(
        aten.convolution.default,
        normal(1, 2, 6, 6), normal(3, 2, 3, 3), None, [2], [1], [1], False, [0], 1,
    ),
    sample(
        aten.convolution.default,
        normal(0, 2, 6, 6), normal(3, 2, 3, 3), normal(3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
    ),
    sample(
        aten.convolution.default,
        torch.arange(50).reshape(1, 2, 5, 5), torch.arange(54).reshape(3, 2, 3, 3),
        torch.arange(3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
    ),
    sample(
        aten.convolution.default,
        torch.arange(50).reshape(1, 2, 5, 5), torch.arange(54).reshape(2, 3, 3, 3),
        None, [2, 1], [1, 1], [1, 1], True, [1, 0], 1,
    ),
]  # fmt: skip
