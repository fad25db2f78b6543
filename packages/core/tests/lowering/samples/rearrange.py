"""Samples for lowering/rearrange.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


x = normal(3, 4, 5)
square = torch.arange(30).reshape(2, 3, 5)
DTYPES = (torch.bool, torch.int32, torch.bfloat16, torch.float64, torch.complex64)

SAMPLES: list[Sample] = [
    sample(aten._unsafe_view.default, x, [12, 5]),
    sample(aten._unsafe_view.default, x, [2, -1]),
    sample(aten._unsafe_view.default, torch.empty(0, 3), [3, 0]),
    sample(aten._reshape_copy.default, x, [5, -1, 4]),
    *[sample(aten.roll.default, x.to(d), [1], [0]) for d in DTYPES],
    sample(aten.roll.default, x, [7]),
    sample(aten.roll.default, x, [-1, 13], [-1, 1]),
    sample(aten.roll.default, x, [1, 1], [0, 0]),
    sample(aten.roll.default, x, [0], [2]),
    sample(aten.roll.default, torch.tensor(2.0), [1]),
    sample(aten.roll.default, torch.empty(0, 3), [1], [0]),
    *[sample(aten.flip.default, x.to(d), [0, -1]) for d in DTYPES],
    sample(aten.flip.default, x, []),
    sample(aten.flip.default, torch.tensor(2.0), [0]),
    *[sample(aten.rot90.default, x, k, [0, -1]) for k in (-1, 0, 1, 2, 7)],
    *[sample(op.default, square.to(d)) for op in (aten.tril, aten.triu) for d in DTYPES],
    *[
        sample(op.default, square, diagonal)
        for op in (aten.tril, aten.triu)
        for diagonal in (-9, -2, 1, 9)
    ],
    sample(aten.tril.default, torch.full((3, 3), torch.nan)),
    sample(aten.triu.default, torch.empty(0, 3)),
    *[
        sample(op.default, rows, columns, offset)
        for op in (aten.tril_indices, aten.triu_indices)
        for rows, columns in ((3, 5), (5, 3), (4, 4), (0, 3), (3, 0))
        for offset in (-7, -2, 0, 1, 7)
    ],
    sample(aten.tril_indices.default, 3, 3, dtype=torch.int32),
    sample(aten.triu_indices.default, 3, 3, dtype=torch.int32),
    *[sample(aten.repeat.default, x.to(d), [2, 1, 3]) for d in DTYPES],
    sample(aten.repeat.default, x, [2, 3, 1, 1, 2]),
    sample(aten.repeat.default, x, [1, 0, 1]),
    sample(aten.repeat.default, torch.tensor(2.0), [3, 2]),
    sample(aten.repeat.default, torch.tensor(2.0), []),
    sample(aten.pixel_shuffle.default, normal(2, 12, 3, 5), 2),
    sample(aten.pixel_shuffle.default, normal(18, 3, 5), 3),
    sample(aten.pixel_unshuffle.default, normal(2, 3, 4, 6), 2),
    sample(aten.pixel_unshuffle.default, normal(1, 2, 2, 3, 9), 3),
    sample(aten.channel_shuffle.default, normal(2, 6, 3, 5), 3),
    sample(aten.channel_shuffle.default, normal(2, 6, 4), 2),
    sample(aten.repeat_interleave.Tensor, torch.tensor([2, 0, 0, 3, 1, 0]), output_size=6),
    sample(aten.repeat_interleave.Tensor, torch.tensor([0, 2], dtype=torch.int32), output_size=2),
    sample(aten.repeat_interleave.Tensor, torch.tensor([], dtype=torch.int64), output_size=0),
    sample(aten.as_strided_scatter.default, x, normal(2, 3), [2, 3], [7, 2], 4),
    sample(aten.as_strided_scatter.default, x, torch.tensor(3.0), [], []),
    sample(aten.as_strided_scatter.default, x, torch.empty(0), [0], [1]),
]
