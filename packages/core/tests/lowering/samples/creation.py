"""Samples of `lowering/creation.py`."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

X = torch.arange(6.0).reshape(2, 3)
HALF = torch.bfloat16


def _has_shape(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype


def _empty(op: object, *args: object, **kwargs: object) -> Sample:
    return Sample(
        op, args, kwargs, why="values of an empty tensor are anything", compare=_has_shape
    )


SAMPLES: list[Sample] = [
    sample(aten.zeros.default, [2, 3]),
    sample(aten.zeros.default, [], dtype=torch.int64),
    sample(aten.ones.default, [0, 3], dtype=torch.bool),
    sample(aten.ones.default, [4], dtype=HALF),
    _empty(aten.empty.memory_format, [2, 3]),
    _empty(aten.empty_strided.default, [2, 3], [1, 2], dtype=torch.int32),
    _empty(aten.empty_permuted.default, [2, 3], [1, 0], dtype=torch.int32),
    _empty(aten.empty_like.default, X, dtype=torch.int32),
    _empty(aten.new_empty.default, X, [4]),
    sample(aten.full.default, [2], 7),
    sample(aten.full.default, [2], 7.5),
    sample(aten.full.default, [2], True),
    sample(aten.full.default, [2], 1 + 2j),
    sample(aten.full.default, [], float("-inf"), dtype=HALF),
    sample(aten.full.default, [3], 2.9, dtype=torch.int64),
    sample(aten.zeros_like.default, X),
    sample(aten.zeros_like.default, X, dtype=torch.int8),
    sample(aten.ones_like.default, X.long()),
    sample(aten.full_like.default, X, 3),
    sample(aten.full_like.default, X, 3.5, dtype=torch.int16),
    sample(aten.zero.default, X),
    sample(aten.fill.Scalar, X.long(), 2.7),
    sample(aten.fill.Tensor, X, torch.tensor(4)),
    sample(aten.new_zeros.default, X, [2, 2]),
    sample(aten.new_ones.default, X, [2], dtype=torch.int64),
    sample(aten.new_full.default, X, [2], 9),
    *(sample(aten.scalar_tensor.default, s) for s in (3, 2.5, True)),
    sample(aten.scalar_tensor.default, 3, dtype=torch.int64),
    sample(aten.eye.default, 3),
    sample(aten.eye.m, 2, 4, dtype=torch.int64),
    sample(aten.eye.m, 0, 4, dtype=torch.bool),
    sample(aten.arange.default, 5),
    sample(aten.arange.default, 4.5),
    sample(aten.arange.default, 0),
    sample(aten.arange.default, 5, dtype=torch.float32),
    sample(aten.arange.default, 4.5, dtype=torch.int64),
    sample(aten.arange.default, 4.5, dtype=torch.int32),
    sample(aten.arange.default, 0.5, dtype=torch.int64),
    sample(aten.arange.start, -1.5, 3, dtype=torch.int64),
    sample(aten.arange.start, 2.0**53, 2**53 + 5, dtype=torch.int64),
    sample(aten.arange.start_step, 3.7, -2.2, -1.5, dtype=torch.int64),
    sample(aten.arange.start_step, 1.9, 5.1, 1.9, dtype=torch.int64),
    sample(aten.arange.start_step, 1.9, 5.1, 1.9, dtype=torch.int16),
    sample(aten.arange.start, 2, 7),
    sample(aten.arange.start, -1.5, 3),
    sample(aten.arange.start, 300, 310, dtype=HALF),
    sample(aten.arange.start_step, 1, 10, 3),
    sample(aten.arange.start_step, 10, 1, -3),
    sample(aten.arange.start_step, 0, 1, 0.1),
    sample(aten.arange.start_step, 1.0, 0.0, -0.25, dtype=torch.float64),
    sample(aten.arange.start_step, 0, 10, 2, dtype=torch.uint8),
    sample(aten.arange.start_step, 0.5, 6.5, 1.5, dtype=torch.int64),
    sample(aten.arange.start_step, 2**40, 2**40 + 3, 1),
    *(sample(aten.linspace.default, 0, 1, steps) for steps in (0, 1, 2, 7)),
    sample(aten.linspace.default, -3, 10.5, 11, dtype=torch.float64),
    sample(aten.linspace.default, 0, 10, 4, dtype=torch.int64),
    sample(aten.linspace.default, -3.7, 9.2, 6, dtype=torch.int32),
    sample(aten.linspace.default, 0, 1, 9, dtype=HALF),
    sample(aten.linspace.default, 0, 1j, 5),
    sample(aten.linspace.Tensor_Tensor, torch.tensor(1.0), torch.tensor(2), 5),
    sample(aten.linspace.Tensor_Scalar, torch.tensor(1), 2, 5),
    sample(aten.linspace.Scalar_Tensor, 1, torch.tensor(3.0), 5),
    sample(aten.logspace.default, 0, 3, 4),
    sample(aten.logspace.default, 0, 3, 7, 2.0),
    sample(aten.logspace.default, 0, 3, 1, 2.0, dtype=torch.float64),
    sample(aten.logspace.default, 0, 3, 4, dtype=torch.int64),
    sample(aten.logspace.default, 0, 3, 0),
    sample(aten.logspace.Tensor_Tensor, torch.tensor(1.0), torch.tensor(2), 5),
    sample(aten.logspace.Tensor_Scalar, torch.tensor(1), 2, 5),
    sample(aten.logspace.Scalar_Tensor, 1, torch.tensor(3.0), 5),
]
SAMPLES += [
    sample(aten.range.default, 0, 5),
    sample(aten.range.step, 1.5, 4.2, 0.3),
    sample(aten.range.step, 5, -3, -2, dtype=torch.int64),
    sample(aten.range.step, 0, 1, 0.1, dtype=torch.float64),
    sample(aten.range.step, 2, 2, 1),
]
