"""Samples of `lowering/cast.py`."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten, prims

FLOATS = torch.tensor([-3.7, -1.0, -0.0, 0.0, 0.5, 1.5, 100.25])
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]

SAMPLES: list[Sample] = [
    *(sample(aten._to_copy.default, FLOATS, dtype=dtype) for dtype in DTYPES),
    *(sample(aten._to_copy.default, FLOATS.to(dtype), dtype=torch.float32) for dtype in DTYPES),
    *(sample(aten._to_copy.default, FLOATS.to(dtype), dtype=torch.uint8) for dtype in DTYPES),
    sample(aten._to_copy.default, FLOATS),
    sample(aten._to_copy.default, torch.tensor([300, -1, 2**40]), dtype=torch.uint8),
    sample(aten._to_copy.default, torch.tensor([300, -1, 2**40 + 5]), dtype=torch.int32),
    sample(aten._to_copy.default, torch.tensor([float("nan"), float("inf")]), dtype=torch.bool),
    sample(aten._to_copy.default, torch.tensor([1j, 0j, 2 + 0j]), dtype=torch.bool),
    sample(aten._to_copy.default, torch.tensor(3.9), dtype=torch.int64),
    sample(aten._to_copy.default, torch.zeros(0, 3), dtype=torch.int64),
    sample(prims.convert_element_type.default, FLOATS, torch.bfloat16),
    sample(prims.convert_element_type.default, torch.tensor([True, False]), torch.float32),
    sample(aten.clone.default, FLOATS),
    sample(aten.clone.default, torch.tensor(2)),
    sample(aten.alias_copy.default, FLOATS),
    sample(aten.detach_copy.default, FLOATS),
    sample(aten.lift.default, FLOATS),
    sample(aten.lift_fresh_copy.default, FLOATS),
    sample(aten.copy.default, torch.zeros(2, 7), FLOATS),
    sample(aten.copy.default, torch.zeros(2, 7, dtype=torch.int32), FLOATS.double()),
    sample(aten.copy.default, torch.zeros(3, dtype=torch.bool), torch.tensor(0.5)),
    sample(aten.copy.default, torch.zeros(2, 3, 7), FLOATS.reshape(1, 7)),
    sample(aten.copy.default, torch.zeros(0, 2), torch.ones(2)),
]
