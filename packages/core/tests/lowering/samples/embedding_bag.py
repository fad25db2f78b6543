"""Samples for lowering/embedding_bag.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
BF16 = torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


indices = torch.tensor([1, 2, 4, 1, 0, 5, 3, 1])
offsets = torch.tensor([0, 3, 3, 5])
closed = torch.tensor([0, 3, 3, 5, 8])
forward = aten._embedding_bag.default
WHY = "the CPU's other results depend on the way it takes"


def same_output(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual[0], expected[0])


def same_all(actual: Any, expected: Any) -> None:
    """Of maxima everything is determined."""
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


def forwards(dtype: torch.dtype) -> list[Sample]:
    weight, each = normal(6, 3, dtype=dtype), normal(8, dtype=dtype)
    rows: list[Sample] = []
    for op in (forward, aten._embedding_bag_forward_only.default):
        for padding in (-1, 1):
            calls: list[tuple[Any, ...]] = [
                (weight, indices, offsets, False, mode, False, None, False, padding)
                for mode in (0, 1, 2)
            ]
            calls.append((weight, indices, closed, False, 0, False, each, True, padding))
            calls.append((weight, indices, closed, False, 1, False, None, True, padding))
            rows += [Sample(op, call, why=WHY, compare=same_output) for call in calls]
    maxima = (weight, indices, offsets, False, 2, False, None, False, 1)
    rows.append(Sample(forward, maxima, why="each result is compared", compare=same_all))
    return rows


def backwards(dtype: torch.dtype) -> list[Sample]:
    weight, grad = normal(6, 3, dtype=dtype), normal(4, 3, dtype=dtype)
    rows: list[Sample] = []
    for mode, by_freq, weights, padding in [
        (0, False, None, -1),
        (1, False, None, 1),
        (2, False, None, 1),
    ]:
        _, bags, sizes, maxima = forward(
            weight.double(), indices, offsets, by_freq, mode, False,
            None if weights is None else weights.double(), False, padding,
        )  # fmt: skip
        last = (6, by_freq, mode, weights, padding)
        dense = aten._embedding_bag_dense_backward.default
        rows.append(sample(dense, grad, indices, bags, sizes, maxima, *last))
        last = (6, by_freq, mode, False, weights, padding)
        either = aten._embedding_bag_backward.default
        rows.append(sample(either, grad, indices, offsets, bags, sizes, maxima, *last))
    bags = torch.tensor([0, 0, 0, 2, 2, 3, 3, 3])
    of_weights = aten._embedding_bag_per_sample_weights_backward.default
    for padding in (-1, 1):
        rows.append(sample(of_weights, grad, weight, indices, offsets, bags, 0, padding))
    return rows


def is_documented_gradient(actual: Any, _: Any) -> None:
    """Each index has the gradient of one bag, 1, however often it occurs."""
    torch.testing.assert_close(actual, torch.ones(6, 3))


SAMPLES: list[Sample] = [
    Sample(
        aten._embedding_bag_dense_backward.default,
        (
            torch.ones(4, 3),
            indices,
            torch.tensor([0, 0, 0, 2, 2, 3, 3, 3]),
            torch.zeros(4, dtype=torch.int64),
            torch.zeros(0, dtype=torch.int64),
            6,
            True,
            0,
            None,
            -1,
        ),
        why="the CPU kernel divides by the frequency of another index",
        compare=is_documented_gradient,
    ),
    *forwards(torch.float32),
    *forwards(torch.float64),
    *backwards(torch.float32),
    *backwards(torch.float64),
    Sample(
        forward,
        (normal(6, 3, dtype=BF16), indices, offsets, False, 1),
        why=WHY,
        compare=same_output,
    ),
    Sample(
        forward,
        (normal(6, 3), indices[:0], offsets[:1], False, 2),
        why=WHY,
        compare=same_output,
    ),
]
