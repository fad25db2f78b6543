"""Samples for lowering/windows.py."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

SAMPLES: list[Sample] = [
    *(sample(aten.kaiser_window.default, n) for n in (0, 1, 2, 9)),
    sample(aten.kaiser_window.default, 8, dtype=torch.float64),
    sample(aten.kaiser_window.periodic, 9, False),
    sample(aten.kaiser_window.periodic, 9, True),
    sample(aten.kaiser_window.beta, 10, False, 5.5),
    sample(aten.kaiser_window.beta, 10, True, 80.0),
    sample(aten.kaiser_window.beta, 10, True, 0.0),
]
