"""Samples of `lowering/pointwise/complex.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

RE = torch.tensor([[1.0, -2.0, 0.0], [0.5, math.nan, -0.0]])
IM = torch.tensor([0.5, 0.0, -3.0])
Z = torch.complex(RE, IM.expand(2, 3).contiguous())

SAMPLES: list[Sample] = [
    sample(aten.complex.default, RE, IM),
    sample(aten.complex.default, RE.double(), torch.tensor(2.0, dtype=torch.float64)),
    sample(aten.complex.default, torch.tensor(1.0), torch.tensor(2.0)),
    sample(aten.polar.default, RE, IM),
    *(sample(aten.angle.default, x) for x in (Z, RE, RE.bfloat16(), torch.tensor([-1, 0, 1]))),
    sample(aten.angle.default, torch.tensor([True, False])),
    *(sample(aten._conj_physical.default, x) for x in (Z, Z.to(torch.complex128))),
    *(sample(aten.conj_physical.default, x) for x in (Z, RE)),
    sample(aten._conj_copy.default, Z),
    sample(aten._neg_view_copy.default, RE),
    sample(aten.view_as_real_copy.default, Z),
    sample(aten.view_as_real_copy.default, torch.tensor(1j)),
    sample(aten.view_as_complex_copy.default, torch.arange(12.0).reshape(2, 3, 2)),
]
