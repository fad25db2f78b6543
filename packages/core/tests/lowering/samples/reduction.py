"""Samples of `lowering/reduction.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

generator = torch.Generator().manual_seed(0)

X = torch.randn(3, 4, 5, generator=generator)
INTS = torch.randint(-4, 5, (3, 6), generator=generator)
COMPLEX = torch.randn(3, 4, dtype=torch.complex64, generator=generator)
NANS = torch.tensor([[1.0, math.nan, 3.0], [2.0, 2.0, -math.inf]])
EMPTY = torch.zeros(0, 3)
ZERO_DIM = torch.tensor(2.5)

FLOATS = [X, X.double(), X.bfloat16(), X.half(), NANS, ZERO_DIM]
EXACT = [INTS, INTS.int(), INTS.to(torch.uint8), INTS > 0, torch.tensor(3), torch.tensor(True)]
ALL = [*FLOATS, *EXACT]
DIMS = [(None, False), ([], True), ([-1], False), ([0, 1], True)]


def _dims(x: torch.Tensor) -> list[tuple[list[int] | None, bool]]:
    return DIMS if x.ndim > 1 else [(None, False), ([0], True), ([-1], False)]


def _each_dim(x: torch.Tensor) -> list[tuple[int, bool]]:
    return [(0, False), (-1, True)]


SUMS = [
    *(
        sample(aten.sum.dim_IntList, x, dim, keep)
        for x in [*ALL, COMPLEX, EMPTY]
        for dim, keep in _dims(x)
    ),
    *(sample(aten.sum.default, x) for x in [*ALL, COMPLEX, EMPTY]),
    sample(aten.sum.default, INTS, dtype=torch.float32),
    sample(aten.sum.default, X.bfloat16(), dtype=torch.float32),
    sample(aten.sum.default, INTS, dtype=torch.bool),
    sample(aten.sum.default, torch.full((4096,), 1.0, dtype=torch.bfloat16)),
    *(sample(aten.nansum.default, x) for x in [NANS, X, INTS]),
    sample(aten.nansum.default, NANS, [1], True),
    *(
        sample(aten.mean.dim, x, dim, keep)
        for x in [*FLOATS, COMPLEX, EMPTY]
        for dim, keep in _dims(x)
    ),
    *(sample(aten.mean.default, x) for x in [*FLOATS, EMPTY]),
    sample(aten.mean.default, INTS, dtype=torch.float32),
    sample(aten.mean.dim, INTS, [0], dtype=torch.float64),
    *(
        sample(aten.prod.dim_int, x, dim, keep)
        for x in [*ALL, COMPLEX]
        for dim, keep in _each_dim(x)
    ),
    *(sample(aten.prod.default, x) for x in [*ALL, EMPTY]),
    sample(aten.prod.default, INTS, dtype=torch.float32),
    sample(aten.prod.default, INTS, dtype=torch.bool),
]

EXTREMES = [
    *(
        sample(op, x, dim or [], keep)
        for op in (aten.amax.default, aten.amin.default)
        for x in ALL
        for dim, keep in _dims(x)
    ),
    *(sample(op, x) for op in (aten.max.default, aten.min.default) for x in ALL),
    *(
        sample(op, x, dim, keep)
        for op in (aten.max.dim, aten.min.dim)
        for x in ALL
        for dim, keep in _each_dim(x)
    ),
    *(
        sample(op, torch.tensor([[2, 2, 1], [-math.inf] * 3, [math.inf] * 3]), 1)
        for op in (aten.max.dim, aten.min.dim)
    ),
    *(sample(op, EMPTY, 1) for op in (aten.max.dim, aten.min.dim)),
    *(sample(aten.aminmax.default, x) for x in ALL),
    *(sample(aten.aminmax.default, x, dim=-1, keepdim=True) for x in ALL),
    *(
        sample(op, x, dim, keep)
        for op in (aten.argmax.default, aten.argmin.default)
        for x in ALL
        if x.dtype != torch.bool
        for dim, keep in [(None, False), (None, True), *_each_dim(x)]
    ),
    sample(aten.argmax.default, torch.tensor([1, 3, 3, 2])),
]

TRUTHS = [
    *(sample(op, x) for op in (aten.any.default, aten.all.default) for x in [*ALL, COMPLEX, EMPTY]),
    *(
        sample(op, x, dim, keep)
        for op in (aten.any.dim, aten.all.dim)
        for x in [*ALL, EMPTY]
        for dim, keep in _each_dim(x)
    ),
    *(
        sample(op, x, [0, 1], True)
        for op in (aten.any.dims, aten.all.dims)
        for x in [X, INTS, EMPTY]
    ),
    *(sample(op, X) for op in (aten.any.dims, aten.all.dims)),
    *(sample(op, INTS > 0) for op in (aten._is_any_true.default, aten._is_all_true.default)),
    *(sample(aten.count_nonzero.default, x) for x in [*ALL, COMPLEX, EMPTY]),
    sample(aten.count_nonzero.default, INTS, 0),
    sample(aten.count_nonzero.dim_IntList, X, [0, -1]),
]

MOMENTS = (
    aten.var.correction,
    aten.std.correction,
    aten.var_mean.correction,
    aten.std_mean.correction,
)
VARIANCES = [
    *(
        sample(op, x, dim, keepdim=keep)
        for op in MOMENTS
        for x in [*FLOATS, COMPLEX, EMPTY]
        for dim, keep in _dims(x)
    ),
    *(sample(op, X, [1], correction=c) for op in MOMENTS for c in (0, 1, 2.5, 4, 7)),
]

ORDERS = [0, 1, 2, 3, 2.5, -1, math.inf, -math.inf]
NORMS = [
    *(
        sample(aten.linalg_vector_norm.default, x, p)
        for x in [X, X.double(), X.bfloat16(), COMPLEX, ZERO_DIM]
        for p in ORDERS
    ),
    sample(aten.linalg_vector_norm.default, X, 2, [1], True),
    sample(aten.linalg_vector_norm.default, X.bfloat16(), 2, [0, -1], dtype=torch.float32),
    sample(aten.linalg_vector_norm.default, COMPLEX, 2, dtype=torch.complex128),
    sample(aten.linalg_vector_norm.default, EMPTY),
    sample(aten.linalg__powsum.default, X, 3, [1]),
    sample(aten.linalg__powsum.default, X, 2, None, True),
    sample(aten.norm.Scalar, X),
    sample(aten.norm.Scalar, X, 1),
    sample(aten.norm.ScalarOpt_dim, X, None, [1]),
    sample(aten.norm.ScalarOpt_dim, X, 2, [1, 2], True),
    sample(aten.norm.ScalarOpt_dtype, X, 2, dtype=torch.float64),
    sample(aten.norm.ScalarOpt_dim_dtype, X, 1, [0], False, dtype=torch.float64),
    *(
        sample(aten.logsumexp.default, x, [-1], keep)
        for x in [*FLOATS, INTS, COMPLEX]
        for keep in (False, True)
    ),
    sample(aten.logsumexp.default, torch.tensor([[-math.inf, -math.inf], [math.inf, 0.0]]), [1]),
    sample(aten.logsumexp.default, X, [0, 2]),
    sample(aten.logsumexp.default, torch.tensor(5 + 100j), [0]),
    sample(aten.logsumexp.default, EMPTY, [1]),
    sample(aten.logsumexp.default, EMPTY, [0]),
]

SAMPLES: list[Sample] = [*SUMS, *EXTREMES, *TRUTHS, *VARIANCES, *NORMS]
