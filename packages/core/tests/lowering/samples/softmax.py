"""Samples of `lowering/softmax.py`."""

from __future__ import annotations

from dataclasses import replace

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

generator = torch.Generator().manual_seed(0)

X = 3 * torch.randn(4, 3, 5, generator=generator)
GRAD = torch.randn(4, 3, 5, generator=generator)
LARGE = torch.tensor([[1e4, -1e4, 1e4], [float("-inf"), 0.0, 1.0]])
NOTHING_ALLOWED = torch.full((2, 3), float("-inf"))


def _both(x: torch.Tensor, dim: int) -> list[Sample]:
    log = sample(aten._log_softmax.default, x, dim, False)
    if x.dtype.itemsize == 2:
        why = "PyTorch's kernel rounds to half between its steps; ours rounds once"
        log = replace(log, rtol=0.016, atol=0.004, why=why)
    return [sample(aten._softmax.default, x, dim, False), log]


def _backward(x: torch.Tensor, dim: int) -> list[Sample]:
    grad = GRAD.reshape(-1)[: x.numel()].reshape(x.shape).to(x.dtype)
    return [
        sample(aten._softmax_backward_data.default, grad, x.softmax(dim), dim, x.dtype),
        sample(aten._log_softmax_backward_data.default, grad, x.log_softmax(dim), dim, x.dtype),
    ]


INPUTS = [
    (X, -1),
    (X, 0),
    (X, 1),
    (X.bfloat16(), -1),
    (X.half(), -1),
    (X.double(), 1),
    (torch.tensor(2.0), 0),
    (torch.zeros(0, 3), 1),
    (torch.zeros(3, 0), 1),
]

SAMPLES: list[Sample] = [
    *(row for x, dim in INPUTS for row in _both(x, dim)),
    *_both(LARGE, -1),
    *_both(NOTHING_ALLOWED, -1),
    *(row for x, dim in INPUTS for row in _backward(x, dim)),
]
