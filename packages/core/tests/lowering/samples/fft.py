"""Samples for lowering/fft.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


x = normal(3, 4, 5, 6, dtype=torch.float64)
z = torch.complex(x, x.flip(0))
DIMS = [[0], [3], [1, 3], [3, 1], [2, 0, 1], [0, 1, 2, 3], [3, 2, 1, 0]]

SAMPLES: list[Sample] = [
    *[
        sample(aten._fft_c2c.default, z, dim, normalization, forward)
        for dim in DIMS
        for normalization in (0, 1, 2)
        for forward in (True, False)
    ],
    sample(aten._fft_c2c.default, z.to(torch.complex64), [1, 2], 1, True),
    sample(aten._fft_c2c.default, z, [], 0, True),
    *[
        sample(aten._fft_r2c.default, x, dim, normalization, onesided)
        for dim in DIMS
        for normalization in (0, 1, 2)
        for onesided in (True, False)
    ],
    sample(aten._fft_r2c.default, x.float(), [1, 2], 1, True),
    sample(aten._fft_r2c.default, normal(1), [0], 0, True),
    *[
        sample(aten._fft_c2r.default, z, dim, normalization, size)
        for dim in DIMS
        for normalization in (0, 1, 2)
        for size in (2 * z.shape[dim[-1]] - 2, 2 * z.shape[dim[-1]] - 1)
    ],
    sample(aten._fft_c2r.default, z.to(torch.complex64), [1, 2], 1, 8),
    sample(aten._fft_c2r.default, normal(1, dtype=torch.complex64), [0], 0, 1),
]
