"""Samples for lowering/resample.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.lowering.resample import NEAREST, SMOOTH
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
BF16 = torch.bfloat16

#          input sizes    output sizes  given scales
SIZES: dict[int, list[tuple[list[int], list[int], list[float] | None]]] = {
    1: [([2, 3, 5], [10], None), ([2, 3, 5], [7], None), ([2, 3, 9], [4], [0.45])],
    2: [
        ([2, 3, 5, 4], [10, 12], None),
        ([2, 3, 5, 4], [7, 9], None),
        ([2, 3, 8, 6], [4, 3], None),
        ([2, 3, 5, 7], [11, 17], [2.3, 2.5]),
        ([1, 1, 4, 4], [1, 1], None),
        ([2, 3, 5, 4], [5, 4], None),
    ],
    3: [([1, 2, 3, 4, 5], [6, 4, 7], None), ([1, 2, 3, 4, 5], [7, 9, 11], [2.4, 2.3, 2.2])],
}


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def rows(forward: Any, backward: Any, rank: int, align: list[tuple[bool, ...]]) -> list[Sample]:
    result: list[Sample] = []
    for size, out, scales in SIZES[rank]:
        for corners in align:
            rest = (*corners, *(scales or []))
            why = "sums in another order; weights differ in the last bits"
            grad = normal(*size[:2], *out)
            result += [
                Sample(forward.default, (normal(*size), out, *rest), rtol=1e-4, atol=2e-5, why=why),
                Sample(backward.default, (grad, out, size, *rest), rtol=1e-4, atol=2e-5, why=why),
            ]
    return result


either = [(False,), (True,)]

SAMPLES: list[Sample] = [
    *[row for f, b, rank, _ in NEAREST for row in rows(f, b, rank, [()])],
    *[row for f, b, rank, _ in SMOOTH for row in rows(f, b, rank, either)],
    sample(aten.upsample_nearest2d.default, torch.arange(60).reshape(1, 3, 5, 4).byte(), [10, 7]),
    sample(aten.upsample_nearest2d.default, normal(1, 3, 5, 4, dtype=BF16), [10, 7]),
    sample(
        aten.upsample_nearest2d.default, normal(1, 3, 5, 4), [10, 7], scales_h=2.1, scales_w=1.8
    ),
    *(
        sample(op.default, torch.randint(256, (1, 3, 5, 4), generator=seed).byte(), out, corners)
        for op in (aten.upsample_bilinear2d, aten.upsample_bicubic2d)
        for out in ([10, 7], [3, 4])
        for corners in (False, True)
    ),
    sample(aten.upsample_bilinear2d.default, normal(1, 3, 5, 4, dtype=BF16), [10, 7], False),
    sample(aten.upsample_bilinear2d.default, normal(1, 3, 5, 4).double(), [10, 7], True),
    sample(aten.upsample_bilinear2d.default, normal(0, 3, 5, 4), [10, 7], False),
]
