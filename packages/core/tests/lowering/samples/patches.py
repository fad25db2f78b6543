"""Samples for lowering/patches.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


image = normal(2, 3, 7, 8)
#   kernel, dilation, padding, stride
SLIDES = [
    ([2, 3], [1, 1], [0, 0], [1, 1]),
    ([3, 3], [1, 1], [1, 1], [2, 2]),
    ([2, 3], [2, 1], [0, 2], [1, 3]),
    ([7, 4], [1, 1], [0, 0], [7, 4]),
    ([1, 1], [1, 1], [0, 0], [2, 2]),
]
#   sizes, dim, size, step
UNFOLDS = [
    ([3, 9, 4], 1, 3, 2),
    ([3, 9, 4], -2, 2, 3),
    ([3, 9, 4], 1, 9, 1),
    ([3, 9], 0, 1, 1),
    ([3, 9], -1, 4, 4),
    ([2, 100, 3], 1, 40, 1),
    ([9], 0, 3, 2),
    ([], 0, 1, 1),
]
DTYPES = (torch.bfloat16, torch.float64, torch.complex64)

SAMPLES: list[Sample] = [
    *[sample(aten.im2col.default, image, *slide) for slide in SLIDES],
    *[sample(aten.im2col.default, image.to(d), *SLIDES[2]) for d in DTYPES],
    sample(aten.im2col.default, image[0], *SLIDES[1]),
    *[
        sample(aten.col2im.default, aten.im2col.default(image, *slide), [7, 8], *slide)
        for slide in SLIDES
    ],
    *[
        sample(
            aten.col2im.default, aten.im2col.default(image, *SLIDES[0]).to(d), [7, 8], *SLIDES[0]
        )
        for d in (torch.float64, torch.complex64)
    ],
    sample(aten.col2im.default, aten.im2col.default(image[0], *SLIDES[1]), [7, 8], *SLIDES[1]),
    *[
        sample(
            aten.unfold_backward.default,
            normal(*torch.empty(sizes).unfold(dim, size, step).shape),
            sizes,
            dim,
            size,
            step,
        )
        for sizes, dim, size, step in UNFOLDS
    ],
    sample(aten.unfold_backward.default, normal(3, 4, 4, 3).double(), [3, 9, 4], 1, 3, 2),
]
