"""Samples for lowering/norm.py.

`_fused_rms_norm_backward` has no CPU kernel: here it gets one, PyTorch's decomposition.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch._decomp import decomposition_table

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
cpu = torch.library.Library("aten", "IMPL")
BF16 = torch.bfloat16


EPS = 1e-5
rms_norm_backward = aten._fused_rms_norm_backward.default
cpu.impl("_fused_rms_norm_backward", decomposition_table[rms_norm_backward], "CPU")


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=seed, dtype=torch.float64).add(0.5).to(dtype)


def as_meta_says(actual: Any, expected: Any) -> None:
    """Compare values in the narrower of two dtypes, where the CPU kernel gives any.

    atol: that kernel rounds the weight times the inverse deviation to bfloat16 on its way.
    """
    for ours, theirs in zip(actual, expected, strict=True):
        if theirs.numel() or not ours.numel():
            narrow = min(ours.dtype, theirs.dtype, key=lambda d: d.itemsize)
            atol, rtol = (1e-2, 1.6e-2) if narrow == BF16 else (1e-5, 1.3e-6)
            torch.testing.assert_close(ours.to(narrow), theirs.to(narrow), atol=atol, rtol=rtol)
    assert actual[0].dtype == expected[0].dtype


def statistics_differ(op: Any, *args: Any) -> Sample:
    why = "the CPU kernel's statistics are empty or narrow where the meta function's are not"
    return Sample(op, args, why=why, compare=as_meta_says)


def layer(x: torch.Tensor, shape: list[int], weight: Any, bias: Any) -> Sample:
    _, mean, rstd = aten.native_layer_norm(x, shape, weight, bias, EPS)
    grad, mask = normal(*x.shape, dtype=x.dtype), [True, weight is not None, bias is not None]
    op = aten.native_layer_norm_backward.default
    return sample(op, grad, x, shape, mean, rstd, weight, bias, mask)


def rms(x: torch.Tensor, shape: list[int], weight: Any) -> Sample:
    _, rstd = aten._fused_rms_norm(x, shape, weight, EPS)
    grad, mask = normal(*x.shape, dtype=x.dtype), [True, True]
    return sample(aten._fused_rms_norm_backward.default, grad, x, shape, rstd, weight, mask)


def batch(x: torch.Tensor, weight: Any, train: bool) -> Sample:
    c = x.shape[1]
    mean, var = normal(c), positive(c)
    op = aten.native_batch_norm_backward.default
    _, save_mean, save_rstd = aten._native_batch_norm_legit.no_stats(
        x, weight, weight, True, 0.1, EPS
    )
    mask = [True, weight is not None, weight is not None]
    grad = normal(*x.shape, dtype=x.dtype)
    return sample(op, grad, x, weight, mean, var, save_mean, save_rstd, train, EPS, mask)


def group(x: torch.Tensor, weight: Any, groups: int) -> Sample:
    n, c = x.shape[:2]
    size = x[0, 0].numel()
    _, mean, rstd = aten.native_group_norm(x, weight, weight, n, c, size, groups, EPS)
    mask = [True, weight is not None, weight is not None]
    grad = normal(*x.shape, dtype=x.dtype)
    op = aten.native_group_norm_backward.default
    return sample(op, grad, x, mean, rstd, weight, n, c, size, groups, mask)


layer_norm = aten.native_layer_norm.default
group_norm = aten.native_group_norm.default
functional = aten._native_batch_norm_legit_functional.default
frozen = aten._native_batch_norm_legit_no_training.default
no_stats = aten._native_batch_norm_legit.no_stats

SAMPLES: list[Sample] = [
    sample(layer_norm, normal(2, 3, 8), [8], normal(8), normal(8), EPS),
    sample(layer_norm, normal(2, 3, 8), [3, 8], normal(3, 8), None, EPS),
    sample(layer_norm, normal(2, 3, 8), [2, 3, 8], None, None, EPS),
    Sample(
        layer_norm, (normal(2, 8) + 1000, [8], normal(8), normal(8), EPS),
        rtol=1e-3, atol=1e-3, why="the CPU kernel scales before it takes the mean away",
    ),
    sample(layer_norm, normal(0, 8), [8], normal(8), normal(8), EPS),
    sample(layer_norm, normal(2, 8, dtype=torch.float64), [8], None, None, EPS),
    sample(layer_norm, normal(2, 8, dtype=BF16), [8], normal(8), normal(8), EPS),
    statistics_differ(
        layer_norm, normal(2, 8, dtype=BF16), [8], normal(8, dtype=BF16), normal(8, dtype=BF16), EPS
    ),
    layer(normal(2, 3, 8), [8], normal(8), normal(8)),
    layer(normal(2, 3, 8), [3, 8], normal(3, 8), None),
    layer(normal(2, 3, 8), [2, 3, 8], None, None),
    layer(normal(4, 8, dtype=torch.float64), [8], None, None),
    replace(
        layer(normal(2, 3, 8, dtype=BF16), [8], normal(8), normal(8)),
        rtol=1.6e-2, atol=1e-2, why="the CPU kernel rounds to bfloat16 on its way",
    ),
    sample(aten._fused_rms_norm.default, normal(2, 3, 8), [8], normal(8), EPS),
    sample(aten._fused_rms_norm.default, normal(2, 3, 8), [3, 8], None, None),
    sample(aten._fused_rms_norm.default, normal(2, 8, dtype=BF16), [8], normal(8, dtype=BF16), EPS),
    rms(normal(2, 3, 8), [8], normal(8)),
    rms(normal(2, 3, 8, dtype=BF16), [3, 8], normal(3, 8, dtype=BF16)),
    sample(
        functional, normal(3, 4, 5, 5), normal(4), normal(4), normal(4), positive(4), True, 0.1, EPS
    ),
    sample(functional, normal(6, 4), None, None, normal(4), positive(4), True, 0.3, 1e-3),
    sample(
        functional,
        normal(2, 4, 5, dtype=BF16), normal(4), normal(4), normal(4), positive(4), True, 0.1, EPS,
    ),
    statistics_differ(
        functional,
        normal(2, 4, 5, dtype=BF16), normal(4, dtype=BF16), normal(4, dtype=BF16),
        normal(4, dtype=BF16), positive(4, dtype=BF16), True, 0.1, EPS,
    ),
    statistics_differ(
        functional, normal(3, 4, 5), normal(4), normal(4), normal(4), positive(4), False, 0.1, EPS
    ),
    statistics_differ(
        frozen, normal(3, 4, 5), normal(4), normal(4), normal(4), positive(4), 0.1, EPS
    ),
    statistics_differ(frozen, normal(3, 4), None, None, normal(4), positive(4), 0.1, EPS),
    statistics_differ(
        frozen, normal(3, 4, 2, dtype=BF16), normal(4), normal(4), normal(4), positive(4), 0.1, EPS
    ),
    sample(no_stats, normal(3, 4, 5, 2, 2), normal(4), normal(4), True, 0.1, EPS),
    sample(no_stats, normal(3, 4, 5, dtype=torch.float64), None, None, True, 0.1, EPS),
    batch(normal(3, 4, 5, 5), normal(4), True),
    batch(normal(3, 4, 5, 5), normal(4), False),
    batch(normal(6, 4), None, True),
    batch(normal(6, 4), None, False),
    batch(normal(3, 4, 5, dtype=BF16), normal(4), True),
    sample(group_norm, normal(2, 6, 3, 3), normal(6), normal(6), 2, 6, 9, 3, EPS),
    sample(group_norm, normal(2, 6, 5), None, None, 2, 6, 5, 6, EPS),
    sample(group_norm, normal(2, 6, 5, dtype=BF16), normal(6), normal(6), 2, 6, 5, 2, EPS),
    group(normal(2, 6, 3, 3), normal(6), 3),
    group(normal(2, 6, 5), None, 1),
    group(normal(2, 6, 5, dtype=BF16), normal(6, dtype=BF16), 2),
]  # fmt: skip
