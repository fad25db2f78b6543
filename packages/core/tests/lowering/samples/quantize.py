"""Samples for lowering/quantize.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

tensor = aten.fake_quantize_per_tensor_affine_cachemask.default
tensors = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
channel = aten.fake_quantize_per_channel_affine_cachemask.default
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * 20
SCALES, ZEROS = torch.tensor([0.1, 0.25, 0.5, 1.0]), torch.tensor([0, 3, -4, 8], dtype=torch.int32)
ON, OFF = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)

SAMPLES: list[Sample] = [
    sample(tensor, X, 0.25, 3, 0, 255),
    sample(tensor, X, 0.1, 0, -128, 127),
    sample(tensor, X[:0], 0.1, 0, -128, 127),
    sample(tensors, X, SCALES[1:2], ZEROS[1:2], ON, 0, 255),
    sample(tensors, X, SCALES[1:2], ZEROS[1:2], OFF, 0, 255),
    sample(channel, X, SCALES, ZEROS, 1, -128, 127),
    sample(channel, X.T, SCALES, ZEROS, 0, -8, 100),
]
