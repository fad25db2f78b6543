"""Samples for lowering/scatter.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


x = normal(3, 4, 5)
at = torch.tensor([[[0, 2, 1, 0], [1, 1, 2, 2]], [[2, 2, 0, 0], [0, 1, 2, 0]]])
flat = torch.tensor([3, 0, 3])
INT, BOOL = torch.arange(60).reshape(3, 4, 5), torch.arange(60).reshape(3, 4, 5) % 3 == 0
DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.complex64)
REAL = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
none = torch.empty(0, 4, 5, dtype=torch.int64)
special = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])


def ints(*shape: int, below: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=seed).to(dtype)


def once_rounded(op: Any, *args: Any, **kwargs: Any) -> Sample:
    """For 16-bit dtypes, compared with the operator in float32, rounded at the end."""
    dtype = args[0].dtype
    if dtype not in (torch.float16, torch.bfloat16):
        return sample(op, *args, **kwargs)
    wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype == dtype else a for a in args]

    def compare(actual: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(actual, op(*wide, **kwargs).to(dtype))

    return Sample(op, args, kwargs, compare=compare, why="the CPU kernel rounds every partial sum")


SAMPLES: list[Sample] = [
    *[sample(aten.gather.default, x, dim, at) for dim in (0, 1, -1)],
    *[
        sample(aten.gather.default, v, 1, at)
        for v in (INT, BOOL, x.bfloat16(), x.to(torch.complex64))
    ],
    sample(aten.gather.default, x, 0, none),
    sample(aten.gather.default, torch.tensor(3.0), 0, torch.tensor([0, 0])),
    sample(aten.gather.default, torch.tensor(3.0), -1, torch.tensor(0)),
    sample(aten.gather.default, normal(3), 0, torch.tensor(1)),
    sample(aten.gather.default, x, 1, ints(3, 9, 5, below=4)),
    *[
        sample(
            aten.scatter.src, x, dim, torch.argsort(normal(3, 4, 5), dim)[:2, :3], normal(3, 4, 5)
        )
        for dim in (2,)
    ],
    sample(aten.scatter.src, x, -2, torch.argsort(normal(3, 4, 5), 1), normal(3, 4, 5)),
    sample(aten.scatter.src, x, 0, none, normal(3, 4, 5)),
    sample(aten.scatter.src, torch.tensor(3.0), 0, torch.tensor(0), torch.tensor(4.0)),
    *[sample(aten.scatter.value, x, dim, at, 7) for dim in (0, 1, -1)],
    sample(aten.scatter.value, INT, 1, at, 2),
    sample(aten.scatter.value, BOOL, 1, at, True),
    *[
        sample(aten.scatter.reduce, x.to(d), 1, at, (normal(3, 4, 5) * 3).to(d), reduce=how)
        for d in (torch.float32, torch.int64)
        for how in ("add", "multiply")
    ],
    *[sample(aten.scatter.value_reduce, x, 1, at, 3, reduce=how) for how in ("add", "multiply")],
    *[sample(aten.scatter_add.default, x, dim, at, normal(3, 4, 5)) for dim in (0, 1, -1)],
    *[
        sample(aten.scatter_add.default, (x * 3).to(d), 1, at, (normal(3, 4, 5) * 3).to(d))
        for d in DTYPES
    ],
    sample(aten.scatter_add.default, BOOL, 1, at, ~BOOL),
    sample(aten.scatter_add.default, x, 1, none, normal(3, 4, 5)),
    sample(aten.scatter_add.default, normal(4), 0, flat, normal(3)),
    sample(aten.scatter_add.default, torch.tensor(3.0), 0, torch.tensor([0]), torch.tensor([4.0])),
    *[
        sample(
            aten.scatter_reduce.two,
            (x * 3).to(d),
            -2,
            ints(3, 6, 5, below=4),
            (normal(3, 6, 5) * 3).to(d),
            how,
            include_self=include_self,
        )
        for d in REAL
        for how in ("sum", "prod", "mean", "amax", "amin")
        for include_self in (True, False)
    ],
    *[
        sample(aten.scatter_reduce.two, normal(4), 0, torch.tensor([1, 1, 2, 3]), special, how)
        for how in ("sum", "amax", "amin", "mean")
    ],
    *[
        once_rounded(
            aten.index_add.default, (x * 3).to(d), 1, flat, (normal(3, 3, 5) * 3).to(d), alpha=2
        )
        for d in DTYPES
    ],
    sample(aten.index_add.default, x, -1, torch.tensor([4, 4], dtype=torch.int32), normal(3, 4, 2)),
    sample(aten.index_add.default, x, 0, flat[:0], normal(0, 4, 5)),
    sample(aten.index_add.default, normal(4), 0, torch.tensor(2), torch.tensor([4.0])),
    sample(
        aten.index_add.default, torch.tensor(3.0), 0, torch.tensor(0), torch.tensor(4.0), alpha=0.5
    ),
    sample(aten.index_add.default, BOOL, 1, flat, ~BOOL[:, :3]),
    *[sample(aten.index_copy.default, v, 1, flat[:2], v.flip(1)[:, :2]) for v in (x, INT, BOOL)],
    sample(aten.index_copy.default, x, -1, torch.tensor(2), normal(3, 4, 1)),
    sample(aten.index_copy.default, torch.tensor(3.0), 0, torch.tensor([0]), torch.tensor([4.0])),
    *[sample(aten.index_fill.int_Scalar, v, 1, flat, 1) for v in (x, INT, BOOL)],
    sample(aten.index_fill.int_Scalar, x, -1, torch.tensor([-1, 0]), torch.inf),
    sample(aten.index_fill.int_Scalar, x, 0, flat[:0], 2.0),
    sample(aten.index_fill.int_Scalar, torch.tensor(3.0), 0, torch.tensor(0), 2.0),
    sample(aten.index_fill.int_Tensor, x, 1, flat, torch.tensor(2.0)),
    *[
        once_rounded(
            aten.index_reduce.default,
            (x * 3).to(d),
            1,
            flat,
            (normal(3, 3, 5) * 3).to(d),
            how,
            include_self=include_self,
        )
        for d in REAL
        for how in ("prod", "mean", "amax", "amin")
        for include_self in (True, False)
    ],
]
