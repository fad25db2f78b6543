"""Samples for lowering/quantize.py."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

tensor = aten.fake_quantize_per_tensor_affine_cachemask.default
tensors = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
channel = aten.fake_quantize_per_channel_affine_cachemask.default
learned = aten._fake_quantize_learnable_per_tensor_affine.default
learned_channel = aten._fake_quantize_learnable_per_channel_affine.default
learned_back = aten._fake_quantize_learnable_per_tensor_affine_backward.default
learned_channel_back = aten._fake_quantize_learnable_per_channel_affine_backward.default
observed = aten._fused_moving_avg_obs_fq_helper_functional.default
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * 20
SCALES, ZEROS = torch.tensor([0.1, 0.25, 0.5, 1.0]), torch.tensor([0, 3, -4, 8], dtype=torch.int32)
ON, OFF = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
ONE_SCALE, ONE_ZERO = torch.tensor([0.25]), torch.tensor([3.4])
RANGES = (
    torch.tensor([-9.0]),
    torch.tensor([30.0]),
    torch.ones(1),
    torch.zeros(1, dtype=torch.int32),
)
NO_RANGES = torch.tensor([math.inf]), torch.tensor([-math.inf]), *RANGES[2:]
ROWS = [r.expand(5).clone() for r in RANGES]

SAMPLES: list[Sample] = [
    sample(tensor, X, 0.25, 3, 0, 255),
    sample(tensor, X, 0.1, 0, -128, 127),
    sample(tensor, X[:0], 0.1, 0, -128, 127),
    sample(tensors, X, SCALES[1:2], ZEROS[1:2], ON, 0, 255),
    sample(tensors, X, SCALES[1:2], ZEROS[1:2], OFF, 0, 255),
    sample(channel, X, SCALES, ZEROS, 1, -128, 127),
    sample(channel, X.T, SCALES, ZEROS, 0, -8, 100),
    sample(learned, X, ONE_SCALE, ONE_ZERO, 0, 255),
    sample(learned, X, ONE_SCALE, ONE_ZERO * 100, -20, 30, 0.5),
    sample(learned_channel, X, SCALES, ZEROS.float(), 1, -20, 30),
    sample(learned_back, X.cos(), X, ONE_SCALE, ONE_ZERO, -20, 30, 0.5),
    sample(learned_back, X.cos(), X, ONE_SCALE, ONE_ZERO, 0, 255, 1.0),
    sample(learned_channel_back, X.cos(), X, SCALES, ZEROS.float(), 1, -20, 30, 0.5),
    *[
        sample(observed, x, ON, ON, *ranges, 0.01, low, high, -1, False, low < 0)
        for x in (X, X.abs(), -X.abs(), X * 1e-5, X * 0)
        for ranges in (RANGES, NO_RANGES)
        for low, high in ((0, 255), (-127, 127))
    ],
    sample(observed, X, ON, OFF, *RANGES, 0.01, 0, 255, -1),
    sample(observed, X, OFF, ON, *RANGES, 0.01, 0, 255, -1),
    sample(observed, X, ON, ON, *RANGES, 0.01, -128, 127, -1, False, True),
    *[
        sample(observed, X, ON, fake, *ROWS, 0.01, -128, 127, 0, True, symmetric)
        for fake in (ON, OFF)
        for symmetric in (False, True)
    ],
]
