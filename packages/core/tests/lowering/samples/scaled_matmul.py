"""Samples for lowering/scaled_matmul.py."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TENSORWISE, ROWWISE = 0, 1  # recipes of `_scaled_mm_v2`


def normal(*shape: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
    return torch.randn(shape, generator=seed).to(dtype)


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=seed) + 0.5


HALF, THREE = torch.tensor(0.5), torch.tensor(3.0)
OUT = (None, torch.float32, torch.bfloat16, torch.float16, E4M3, E5M2)


def of_recipe(recipe: int, bias: torch.Tensor | None, out: torch.dtype) -> tuple[Any, ...]:
    scales = (HALF, THREE) if recipe == TENSORWISE else (uniform(4, 1), uniform(1, 32))
    a, b = (([s], [recipe], []) for s in scales)
    return normal(4, 16), normal(16, 32), *a, *b, bias, out


SAMPLES: list[Sample] = [
    *[
        sample(aten._scaled_mm.default, normal(4, 16), normal(16, 32), HALF, THREE, out_dtype=out)
        for out in OUT
    ],
    *[
        sample(
            aten._scaled_mm.default,
            normal(4, 16),
            normal(16, 32),
            uniform(4, 1),
            uniform(1, 32),
            bias=uniform(32).to(out),
            out_dtype=out,
        )
        for out in (torch.float32, torch.bfloat16)
    ],
    sample(
        aten._scaled_mm.default,
        normal(4, 16, dtype=E5M2),
        normal(16, 32),
        HALF,
        THREE.reshape(1),
        out_dtype=torch.bfloat16,
    ),
    *[
        sample(
            aten._scaled_mm.default,
            normal(4, 7),
            normal(7, 3),
            HALF,
            THREE * size,
            scale_result=HALF,
            out_dtype=out,
        )
        for size in (1, 1e5)
        for out in (E4M3, E5M2, torch.bfloat16)
    ],
    *[
        sample(aten._scaled_mm_v2.default, *of_recipe(recipe, bias, out))
        for recipe in (TENSORWISE, ROWWISE)
        for out in (torch.float32, torch.bfloat16)
        for bias in (None, uniform(32).to(out))
    ],
]
