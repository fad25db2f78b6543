"""Products of groups and of scaled matrices are refused at the call, in PyTorch's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import ScalingType, scaled_mm

from sides import DEVICE, difference, on_both

grouped, scaled = torch._grouped_mm, torch._scaled_mm
FLOAT8, BFLOAT16 = torch.float8_e4m3fn, torch.bfloat16
TENSORWISE, ROWWISE = ScalingType.TensorWise, ScalingType.RowWise
BLOCKS = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
Device = str


def ones(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, device=device).to(dtype)


def ends(device: Device, *positions: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(positions, dtype=dtype, device=device)


def rows(d: Device, **how: Any) -> torch.Tensor:
    """A product of 16 rows in three groups, but for what is given otherwise."""
    a, b = how.pop("a", ones(d, 16, 8)), how.pop("b", ones(d, 3, 8, 24))
    return grouped(a, b, **{"offs": ends(d, 2, 4, 16), **how})


def product(d: Device, **how: Any) -> torch.Tensor:
    """A product of float8 matrices with one scale each, but for what is given otherwise."""
    a, b = how.pop("a", ones(d, 4, 8, dtype=FLOAT8)), how.pop("b", ones(d, 8, 8, dtype=FLOAT8))
    one = ones(d, 1)
    return scaled(a, b, how.pop("scale_a", one), how.pop("scale_b", one), **how)


def by_recipe(d: Device, a: tuple[Any, Any], b: tuple[Any, Any], rows: int = 4) -> torch.Tensor:
    left, right = ones(d, rows, 256, dtype=FLOAT8), ones(d, 256, 256, dtype=FLOAT8)
    return scaled_mm(left, right, ones(d, *a[0]), a[1], ones(d, *b[0]), b[1])


CALLS: dict[str, Callable[[Device], torch.Tensor]] = {
    "float64": lambda d: rows(d, a=ones(d, 16, 8).double(), b=ones(d, 3, 8, 24).double()),
    "integers": lambda d: rows(d, a=ones(d, 16, 8).int(), b=ones(d, 3, 8, 24).int()),
    "two dtypes": lambda d: rows(d, b=ones(d, 3, 8, 24, dtype=BFLOAT16)),
    "offsets in int64": lambda d: rows(d, offs=ends(d, 2, 4, 16, dtype=torch.int64)),
    "a matrix of offsets": lambda d: rows(d, offs=ends(d, 2, 4, 16)[None]),
    "too few offsets": lambda d: rows(d, offs=ends(d, 2, 16)),
    "no offsets": lambda d: rows(d, offs=None),
    "offsets for stacks": lambda d: rows(d, a=ones(d, 3, 16, 8)),
    "stacks of other sizes": lambda d: rows(d, a=ones(d, 2, 16, 8), offs=None),
    "other inner sizes": lambda d: rows(d, b=ones(d, 3, 16, 24)),
    "four dims": lambda d: rows(d, b=ones(d, 3, 3, 8, 24)),
    "one dim": lambda d: rows(d, a=ones(d, 16)),
    "a bias": lambda d: rows(d, bias=ones(d, 3, 24)),
    "another dtype of the result": lambda d: rows(d, out_dtype=BFLOAT16),
    "large and refused": lambda d: rows(d, a=ones(d, 512, 512), b=ones(d, 3, 500, 512)),
    "float32 for float8": lambda d: product(d, a=ones(d, 4, 8)),
    "scales of any size": lambda d: product(d, scale_a=ones(d, 3), scale_b=ones(d, 3)),
    "scales in float64": lambda d: product(d, scale_a=ones(d, 1).double()),
    "scaled, other inner sizes": lambda d: product(d, b=ones(d, 4, 8, dtype=FLOAT8)),
    "a short bias": lambda d: product(d, bias=ones(d, 3)),
    "scaled, three dims": lambda d: product(d, a=ones(d, 1, 4, 8, dtype=FLOAT8)),
    "scales of blocks": lambda d: by_recipe(d, ((4, 2), BLOCKS[0]), ((2, 2), BLOCKS[1])),
    "large, scales of blocks": lambda d: by_recipe(
        d, ((400, 2), BLOCKS[0]), ((2, 2), BLOCKS[1]), rows=400
    ),
    "two recipes": lambda d: by_recipe(d, ((4, 1), ROWWISE), ((1, 1), TENSORWISE)),
    "too few scales": lambda d: by_recipe(d, ((3, 1), ROWWISE), ((1, 256), ROWWISE)),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_the_cpu_refuses_is_refused_in_its_words(name: str) -> None:
    call = CALLS[name]

    case = on_both(name, lambda d: {"product": call(d)})

    assert case.cpu.error is not None
    assert difference(case) is None


def test_factors_of_two_matrices_that_do_not_fit_are_refused_whatever_the_groups() -> None:
    a, b = ones(DEVICE, 16, 8), ones(DEVICE, 16, 24)

    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        grouped(a, b, offs=ends(DEVICE, 2, 4, 16))


def test_strides_are_no_reason_to_refuse() -> None:
    x = torch.randn(9, 3)
    weight = torch.randn(2, 3, 5)
    offs = ends(DEVICE, 4, 9)

    y = grouped(x.to(DEVICE), weight.to(DEVICE), offs=offs)

    torch.testing.assert_close(y.cpu(), torch.cat([x[:4] @ weight[0], x[4:] @ weight[1]]))
