"""Samples for lowering/sort.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


special = torch.tensor([1.0, torch.nan, -torch.inf, torch.inf, -3.0, -torch.nan, 2.0, torch.nan])
x = normal(4, 5, 6)
rows = torch.tensor(
    [[1, torch.nan, 3, torch.nan], [torch.nan] * 4, [4, 2, 3, 1], [1, 2, torch.nan, 0]]
)
ties = torch.randint(-2, 3, (3, 17), generator=seed)
WHY = "ties may name any of the equal elements"
REAL = (torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64)


def same_positions(x: torch.Tensor, dim: int) -> Callable[[Any, Any], None]:
    """Equal values; and the indices, which ties leave open, point at those values and are distinct."""

    def compare(actual: Any, expected: Any) -> None:
        values, positions = actual
        assert positions.dtype == expected[1].dtype and positions.shape == expected[1].shape
        torch.testing.assert_close(values, expected[0], rtol=0, atol=0, equal_nan=True)
        if x.ndim and positions.ndim == x.ndim:
            assert all(
                row.unique().numel() == row.numel()
                for row in positions.movedim(dim, -1).reshape(-1, positions.shape[dim])
            )
        full = positions if positions.ndim == x.ndim else positions.unsqueeze(dim)
        taken = x.gather(dim, full).reshape(values.shape)
        torch.testing.assert_close(taken, values, rtol=0, atol=0, equal_nan=True)

    return compare


def tied(op: Any, x: torch.Tensor, *args: Any, dim: int = -1, **kwargs: Any) -> Sample:
    return Sample(op, (x, *args), kwargs, compare=same_positions(x, dim), why=WHY)


SAMPLES: list[Sample] = [
    *[
        sample(aten.sort.stable, v, stable=True, dim=dim, descending=descending)
        for v in (x, ties, ties > 0)
        for dim in (0, -1)
        for descending in (False, True)
    ],
    *[sample(aten.sort.stable, ties.abs().to(d), stable=True, descending=True) for d in REAL],
    *[sample(aten.sort.stable, special, stable=True, descending=down) for down in (False, True)],
    *[
        tied(aten.sort.default, ties, dim, down, dim=dim)
        for dim in (0, -1)
        for down in (False, True)
    ],
    Sample(
        aten.sort.stable,
        (ties,),
        {"stable": False, "dim": 0},
        compare=same_positions(ties, 0),
        why=WHY,
    ),
    tied(aten.sort.stable, ties, stable=None),
    sample(aten.sort.default, torch.tensor(2.0)),
    sample(aten.sort.default, torch.empty(3, 0)),
    *[
        tied(aten.topk.default, x, 3, dim, largest, dim=dim)
        for dim in (0, 1, -1)
        for largest in (True, False)
    ],
    *[
        tied(aten.topk.default, ties.abs().to(d), 4, 1, largest, dim=1)
        for d in REAL
        for largest in (True, False)
    ],
    *[
        tied(aten.topk.default, special, k, -1, largest)
        for k in (2, 7)
        for largest in (True, False)
    ],
    tied(aten.topk.default, torch.tensor(2.0), 1, 0),
    sample(aten.topk.default, x, 0),
    sample(aten.topk.default, torch.empty(0, 4), 2),
    *[
        tied(aten.kthvalue.default, v, k, dim, keepdim, dim=dim)
        for v in (x, ties, special)
        for k in (1, 3)
        for dim in (0, -1)
        for keepdim in (False, True)
    ],
    *[tied(aten.kthvalue.default, ties.abs().to(d), 2) for d in REAL],
    tied(aten.kthvalue.default, special, 7),
    sample(aten.kthvalue.default, torch.tensor(2.0), 1),
    *[
        tied(op, v, dim, keepdim, dim=dim)
        for op in (aten.median.dim, aten.nanmedian.dim)
        for v in (x, ties, special, rows)
        for dim in (0, -1)
        for keepdim in (False, True)
    ],
    *[
        tied(op, ties.abs().to(d), 1, dim=1)
        for op in (aten.median.dim, aten.nanmedian.dim)
        for d in REAL
    ],
    *[
        sample(op, v)
        for op in (aten.median.default, aten.nanmedian.default)
        for v in (x, ties, special, rows, torch.tensor(2.0), torch.empty(0), normal(4).bfloat16())
    ],
    sample(aten.median.dim, torch.tensor(2.0), -1),
    *[
        tied(aten.mode.default, v, dim, keepdim, dim=dim)
        for v in (ties, ties.float(), ties > 0, ties[:, :1])
        for dim in (0, -1)
        for keepdim in (False, True)
    ],
    *[tied(aten.mode.default, ties.abs().to(d)) for d in REAL],
    sample(aten.mode.default, torch.tensor(2.0)),
]
