"""Samples for lowering/search.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


edges = torch.tensor([-1.5, -0.5, 0.0, 0.0, 0.5, 2.0])
many = normal(300).sort().values
matrix = normal(2, 3, 5).sort().values
x = torch.cat([normal(9), edges, torch.tensor([torch.nan, torch.inf, -torch.inf])])
whole = torch.tensor([1, 3, 3, 7])
DTYPES = (torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float64)
shuffled = normal(5)

ROWS = torch.tensor([0, 0, 2, 2, 2, 5])
STARTS = torch.tensor([0, 2, 2, 5, 5, 5, 6, 6])
COLUMNS = torch.tensor([1, 3, 0, 1, 2, 0])

SAMPLES: list[Sample] = [
    *[
        sample(aten._convert_indices_from_coo_to_csr.default, rows, 7, out_int32=out_int32)
        for rows in (ROWS, ROWS.int(), ROWS[:0], ROWS.repeat_interleave(20))
        for out_int32 in (False, True)
    ],
    sample(aten._convert_indices_from_coo_to_csr.default, ROWS[:0], 0),
    *[
        sample(
            aten._convert_indices_from_csr_to_coo.default,
            starts,
            columns,
            out_int32=out_int32,
            transpose=transpose,
        )
        for starts, columns in (
            (STARTS, COLUMNS),
            (STARTS.int(), COLUMNS.int()),
            (torch.zeros_like(STARTS), COLUMNS[:0]),
            (STARTS.expand(2, 3, -1), COLUMNS.expand(2, 3, -1)),
        )
        for out_int32 in (False, True)
        for transpose in (False, True)
    ],
    *[
        sample(aten.searchsorted.Tensor, sequence, x, right=right, out_int32=out_int32)
        for sequence in (edges, many)
        for right in (False, True)
        for out_int32 in (False, True)
    ],
    *[sample(aten.searchsorted.Tensor, edges, x.reshape(2, 9), side=s) for s in ("left", "right")],
    sample(aten.searchsorted.Tensor, matrix, normal(2, 3, 4)),
    sample(aten.searchsorted.Tensor, normal(2, 100).sort().values, normal(2, 4), right=True),
    sample(aten.searchsorted.Tensor, many, many),
    sample(aten.searchsorted.Tensor, torch.ones(200), torch.ones(3), right=True),
    sample(aten.searchsorted.Tensor, edges, torch.tensor(0.0)),
    sample(aten.searchsorted.Tensor, torch.empty(0), x),
    sample(aten.searchsorted.Tensor, torch.empty(2, 0), normal(2, 4)),
    sample(aten.searchsorted.Tensor, edges, torch.empty(0, 3)),
    sample(aten.searchsorted.Tensor, shuffled, normal(4), sorter=shuffled.argsort()),
    *[sample(aten.searchsorted.Tensor, whole.to(d), whole.flip(0).to(d)) for d in DTYPES],
    *[sample(aten.searchsorted.Scalar, whole, v) for v in (3, 2.5, -1)],
    sample(aten.searchsorted.Scalar, edges, 0.25, right=True, out_int32=True),
    *[sample(aten.bucketize.Tensor, x, edges, right=right) for right in (False, True)],
    sample(aten.bucketize.Tensor, x.reshape(3, 6), many, out_int32=True),
    sample(aten.bucketize.Tensor, torch.tensor([1.5, 3.0]), whole),
    sample(aten.bucketize.Tensor, whole, edges),
    *[sample(aten.bucketize.Scalar, v, whole) for v in (3, 2.5)],
    *[
        sample(aten.isin.Tensor_Tensor, whole.reshape(2, 2), torch.tensor(tests), invert=invert)
        for tests in ([3, 4], [], [[1], [7]])
        for invert in (False, True)
    ],
    sample(aten.isin.Tensor_Tensor, many[::7], many[::3], assume_unique=True),
    sample(aten.isin.Tensor_Tensor, torch.arange(50), torch.arange(0, 300, 3)),
    sample(aten.isin.Tensor_Tensor, x, torch.cat([x, many])),
    sample(aten.isin.Tensor_Tensor, torch.tensor([1.0, 2.5]), torch.tensor([1, 2])),
    sample(aten.isin.Tensor_Tensor, torch.tensor(2.0), edges),
    sample(aten.isin.Tensor_Scalar, whole, 3),
    sample(aten.isin.Tensor_Scalar, whole, 1.5, invert=True),
    sample(aten.isin.Scalar_Tensor, 3, whole),
    sample(aten.isin.Scalar_Tensor, 2, whole, invert=True),
]
