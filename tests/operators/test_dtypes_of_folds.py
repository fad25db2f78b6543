"""Folds into an `out=`, or a `dtype=`, of another dtype: values, dtypes, shapes and refusals as on CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt

Tensor = torch.Tensor

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FOLDS: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x, **how: torch.sum(x, 0, **how),
    "sum of all": torch.sum,
    "sum along both": lambda x, **how: torch.sum(x, (0, 1), True, **how),
    "nansum": lambda x, **how: torch.nansum(x, 0, **how),
    "prod": lambda x, **how: torch.prod(x, 0, **how),
    "prod of all": torch.prod,
    "mean": lambda x, **how: torch.mean(x, 0, **how),
    "cumsum": lambda x, **how: torch.cumsum(x, 0, **how),
    "cumprod": lambda x, **how: torch.cumprod(x, 1, **how),
    "var": lambda x, **how: torch.var(x, 0, **how),
    "norm": lambda x, **how: torch.linalg.vector_norm(x, 2, 0, **how),
    "logsumexp": lambda x, **how: torch.logsumexp(x, 0, **how),
    "amax": lambda x, **how: torch.amax(x, 0, **how),
    "all": torch.all,
    "all along one": lambda x, **how: torch.all(x, 1, **how),
    "all along both": lambda x, **how: torch.all(x, (0, 1), **how),
    "any": torch.any,
    "max": torch.max,
    "min": torch.min,
}
DTYPES = (torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32, torch.complex64)
# Sums of rounded elements differ from rounded sums; none is below 0, for unsigned dtypes.
VALUES = torch.tensor([[1.6, 2.7, 0.5], [1.9, 3.6, 1.4], [2.25, 1.3, 1.2], [1.9, 1.1, 2.6]])
RELATIVE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.complex64: 1e-5}


def folded(fold: str, source: torch.dtype, how: dict[str, Any], device: str) -> Tensor | type:
    """The result on a device, `out=` being of the dtype that is named; or the kind of the error."""
    named = dict(how)
    if (out := named.get("out")) is not None:
        named["out"] = torch.empty(0, dtype=out, device=device)
    try:
        return FOLDS[fold](VALUES.to(source).to(device), **named)
    except (RuntimeError, TypeError) as error:
        return type(error)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("fold", FOLDS)
def test_a_fold_into_another_dtype_is_that_of_the_cpu(fold: str, source: torch.dtype) -> None:
    hows: list[dict[str, Any]] = [{"out": dtype} for dtype in DTYPES]
    hows += [{"dtype": dtype} for dtype in (torch.int64, torch.float32, torch.float64)]
    hows += [{"dtype": torch.float64, "out": torch.float64}]
    hows += [{"dtype": torch.float32, "out": torch.int64}]
    theres, heres = (
        [folded(fold, source, how, device) for how in hows] for device in ("cpu", "pjrt")
    )
    torch_pjrt.sync()  # one program for all
    for how, there, here in zip(hows, theres, heres, strict=True):
        if isinstance(there, type) or isinstance(here, type):
            assert here == there, how
            continue
        near = max(RELATIVE.get(dtype, 1e-7) for dtype in (source, there.dtype, *how.values()))
        exact = not (there.is_floating_point() or there.is_complex())
        assert here.stride() == there.stride()
        torch.testing.assert_close(
            here.cpu(), there, rtol=0 if exact else near, atol=0 if exact else near, msg=str(how)
        )


def test_elements_are_rounded_before_they_are_summed_into_integers() -> None:
    x = torch.tensor([[1.6], [1.6]], device="pjrt")

    assert torch.sum(x, 0, out=torch.empty(0, dtype=torch.int64, device="pjrt")).tolist() == [2]


@pytest.mark.parametrize("fold", [torch.max, torch.min])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_an_extreme_that_an_out_cannot_hold_is_refused_as_on_the_cpu(
    fold: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    def outcome(x: Tensor, device: str) -> int | str:
        out = torch.empty((), dtype=dtype, device=device)
        try:
            return int(fold(x.to(device), out=out))
        except RuntimeError as error:
            return str(error).partition("\n")[0]

    for number in (3, -3, 200, -200, 300, -300, 40000, 1 << 40):
        x = torch.tensor([number, number])
        assert outcome(x, "pjrt") == outcome(x, "cpu")
