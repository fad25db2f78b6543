"""Samples for lowering/antialias.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.lowering.antialias import ANTIALIASED

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


image = torch.randint(0, 256, (2, 3, 11, 7), generator=seed, dtype=torch.uint8)
SIZES = [[11, 7], [4, 3], [5, 15], [22, 2], [1, 1], [30, 20]]

SAMPLES: list[Sample] = [
    row
    for forward, backward, _ in ANTIALIASED
    for size in SIZES
    for align in (False, True)
    for row in (
        sample(forward.default, normal(2, 3, 11, 7), size, align),
        sample(backward.default, normal(2, 3, *size), size, [2, 3, 11, 7], align),
    )
] + [
    row
    for forward, backward, _ in ANTIALIASED
    for row in (
        sample(forward.default, normal(1, 2, 11, 7, dtype=torch.float64), [4, 9], False, 0.4, 1.3),
        sample(forward.default, normal(1, 2, 6, 6), [6, 6], False, 1.2, 0.8),
        sample(
            backward.default,
            normal(1, 2, 4, 9, dtype=torch.float64), [4, 9], [1, 2, 11, 7], False, 0.4, 1.3,
        ),
    )
]  # fmt: skip
SAMPLES += [
    sample(forward.default, image, size, False)
    for forward, _, _ in ANTIALIASED[:2]
    for size in SIZES
    if size != [1, 1]  # an internal assertion of the CPU kernel fails
]
