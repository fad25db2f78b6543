"""Samples for lowering/histogramdd.py."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def chance(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=seed, dtype=torch.float64).to(dtype)


counts, edges = aten.histogram.bin_ct, aten.histogram.bins_tensor
both_counts, both_edges = (
    aten._histogramdd_from_bin_cts.default,
    aten._histogramdd_from_bin_tensors.default,
)
X, POINTS = normal(40), normal(6, 7, 2)
uneven = torch.tensor([-2.0, -0.5, 0.0, 0.1, 3.0])
at_edges = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0, -0.1, 1.1, math.nan])

SAMPLES: list[Sample] = [
    sample(counts, X, 5),
    sample(counts, X, 5, density=True),
    sample(counts, X.double(), 7, range=[-1.0, 1.0], weight=chance(40, dtype=torch.float64)),
    sample(counts, X.view(8, 5), 3, weight=chance(8, 5), density=True),
    sample(counts, X[:0], 4),
    sample(counts, torch.full((3,), 2.0), 4),
    sample(counts, at_edges, 4, range=[0.0, 1.0]),
    sample(counts, X, 4, range=[1.0, 1.0]),
    sample(edges, X, uneven),
    sample(edges, X, uneven, weight=chance(40), density=True),
    sample(edges, at_edges, torch.tensor([0.0, 0.25, 1.0])),
    sample(aten._histogramdd_bin_edges.default, POINTS, [3, 4]),
    sample(aten._histogramdd_bin_edges.default, POINTS.double(), [3, 4], range=[-1.0, 1, 0, 2]),
    sample(aten._histogramdd_bin_edges.default, POINTS[:0], [3, 4]),
    sample(both_counts, POINTS, [3, 4]),
    sample(both_counts, POINTS, [3, 4], range=[-1.0, 1.0, 0.0, 2.0], density=True),
    sample(both_counts, POINTS, [3, 4], weight=chance(6, 7)),
    sample(both_edges, POINTS, [uneven, uneven[1:]]),
    sample(both_edges, POINTS, [uneven, uneven[1:]], weight=chance(6, 7), density=True),
]
