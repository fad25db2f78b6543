"""Samples of `lowering/annotation.py`."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.extend import define_annotation
from torch_pjrt.lowering.value_annotations import ANNOTATE

define_annotation("samples.plain")
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

SAMPLES: list[Sample] = [
    sample(ANNOTATE, X, "samples.plain", "()"),
    sample(ANNOTATE, X[0, 0], "samples.plain", "(1, ('a', None))"),
    sample(ANNOTATE, (X * 9).long(), "samples.plain", "(True,)"),
]
