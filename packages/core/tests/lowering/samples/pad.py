"""Samples for lowering/pad.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


image = normal(2, 3, 5, 6)
solid = normal(2, 3, 4, 5, 6)
DTYPES = (torch.bool, torch.int32, torch.bfloat16, torch.float64, torch.complex64)
PAIRS = {
    1: (aten.reflection_pad1d, aten.replication_pad1d),
    2: (aten.reflection_pad2d, aten.replication_pad2d),
    3: (aten.reflection_pad3d, aten.replication_pad3d),
}
BACKWARDS = {
    1: (aten.reflection_pad1d_backward, aten.replication_pad1d_backward),
    2: (aten.reflection_pad2d_backward, aten.replication_pad2d_backward),
    3: (aten.reflection_pad3d_backward, aten.replication_pad3d_backward),
}
CASES = [
    (1, normal(3, 7), [2, 3]),
    (1, normal(2, 3, 7), [0, 6]),
    (1, normal(2, 3, 7), [3, -2]),
    (1, normal(2, 3, 7), [-1, 2]),
    (2, image, [1, 2, 3, 4]),
    (2, image[0], [0, 5, 1, 0]),
    (2, image, [-1, 2, 3, -2]),
    (2, image.double(), [1, 2, 3, 4]),
    (3, solid, [1, 2, 3, 4, 1, 2]),
    (3, solid[0], [0, 1, 0, 0, 2, 0]),
]


def backward_samples() -> list[Sample]:
    rows: list[Sample] = []
    for n, x, padding in CASES:
        for forward, backward in zip(PAIRS[n], BACKWARDS[n], strict=True):
            grad = normal(*forward.default(x, padding).shape, dtype=x.dtype)
            rows.append(sample(backward.default, grad, x, padding))
    return rows


SAMPLES: list[Sample] = [
    *[sample(aten.constant_pad_nd.default, image.to(d), [1, 2, 0, 3], 1) for d in DTYPES],
    sample(aten.constant_pad_nd.default, image, [1, 2]),
    sample(aten.constant_pad_nd.default, image, [1, -2, -1, -1, 0, 0, 2, -1], torch.nan),
    sample(aten.constant_pad_nd.default, image, [-3, -3, 1, 1], 2.5),
    sample(aten.constant_pad_nd.default, torch.empty(0, 3), [1, 1, 2, 0], -torch.inf),
    sample(aten.constant_pad_nd.default, torch.tensor(2.0), []),
    *[sample(op.default, x, padding) for n, x, padding in CASES for op in PAIRS[n]],
    sample(aten.reflection_pad1d.default, normal(3, 7, dtype=torch.complex64), [2, 3]),
    sample(aten.replication_pad2d.default, image.bfloat16(), [1, 0, 0, 1]),
    *backward_samples(),
]
