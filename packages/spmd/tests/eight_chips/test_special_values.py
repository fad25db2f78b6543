"""NaNs, infinities, signed zeros and the ends of integers, spread over chips, give what the CPU gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_pjrt_spmd import Mesh, distribute_tensor

NAN, INF = float("nan"), float("inf")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
SPECS: tuple[tuple[Any, ...], ...] = (("data", "model"), (("data", "model"),), (None, "model"))


def special(dtype: torch.dtype) -> torch.Tensor:
    """16 rows; columns of numbers, with a NaN, an inf, a -inf, both, of NaNs, infs, and signed zeros."""
    g = torch.Generator().manual_seed(1)
    if dtype == torch.bool:
        x = torch.rand(16, 8, generator=g) < 0.5
        x[:, 0], x[:, 1], x[:, 2], x[:, 3] = (
            False,
            True,
            torch.arange(16) == 5,
            torch.arange(16) > 0,
        )
        return x
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        x = torch.randint(max(info.min, -99), 100, (16, 8), generator=g).to(dtype)
        x[5, 1], x[9, 2], x[:, 3], x[:, 4] = info.min, info.max, info.min, info.max
        x[3, 5], x[12, 5] = info.max, info.min
        return x
    x = torch.randint(-8, 9, (16, 8), generator=g).to(torch.float32) / 4
    x[5, 1], x[9, 2], x[2, 3], x[14, 4], x[1, 4] = NAN, INF, -INF, INF, -INF
    x[:, 5], x[:, 6], x[:, 7] = NAN, INF, torch.tensor([0.0, -0.0]).repeat(8)
    return x.to(dtype)


def places() -> torch.Tensor:
    return torch.randint(0, 6, (16, 8), generator=torch.Generator().manual_seed(2))


def scattered(reduce: str, include_self: bool = True) -> Callable[..., Any]:
    return lambda x, i: [
        torch.ones_like(x[:8]).scatter_reduce(0, i, x, reduce, include_self=include_self),
        torch.ones_like(x[:8]).index_reduce(0, i[:, 0], x, reduce, include_self=include_self),
    ]


#   name: of special values x (16, 8), and numbers i below 6 of the same shape
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "amax": lambda x, i: [x.amax(0), x.amax(1), x.amax(), x.amax((0, 1)), x[:, :5].amax(0, True)],
    "amin": lambda x, i: [x.amin(0), x.amin(1), x.amin(), x.amin((0, 1)), x[:, :5].amin(0, True)],
    "max": lambda x, i: [x.max(), x.max(0).values, x.max(1).values, x.max(0).indices[5:]],
    "min": lambda x, i: [x.min(), x.min(0).values, x.min(1).values, x.min(0).indices[5:]],
    "aminmax": lambda x, i: [*torch.aminmax(x), *torch.aminmax(x, dim=0), *torch.aminmax(x, dim=1)],
    "arg": lambda x, i: [(x * 1)[:, 1:5].argmax(0), x[:, 1:5].argmin(0), x.argmax(), x.argmin(1)],
    "sum": lambda x, i: [x.sum(0), x.sum(1), x.sum()],
    "nansum": lambda x, i: [x.nansum(0), x.nansum(1), x.nansum()],
    "prod": lambda x, i: [x.prod(0), x.prod(1)],
    "mean": lambda x, i: [x.mean(0), x.mean(1), x.nanmean(0)],
    "var": lambda x, i: [x.var(0), x.std(1), torch.var_mean(x, 0)[0]],
    "any and all": lambda x, i: [x.any(0), x.any(1), x.any(), x.all(0), x.all(1), x.all()],
    "count_nonzero": lambda x, i: [x.count_nonzero(0), x.count_nonzero()],
    "median": lambda x, i: [x.median(0).values, x.nanmedian(0).values, x.median()],
    "quantile": lambda x, i: [torch.quantile(x, 0.5, 0), torch.nanquantile(x, 0.5, 0)],
    "norms": lambda x, i: [
        torch.linalg.vector_norm(x, p, d) for p in (INF, -INF, 0, 1, 2) for d in (0, 1, None)
    ],
    "clip": lambda x, i: [torch.nn.utils.get_total_norm([x, x[:, :1]], p) for p in (INF, 2.0)],
    "logsumexp": lambda x, i: [x.logsumexp(0), x.logsumexp(1)],
    "softmax": lambda x, i: [f(d) for f in (x.softmax, x.log_softmax) for d in (0, 1)],
    "layer norm": lambda x, i: [
        F.layer_norm(x, (8,)),
        F.normalize(x, INF, 0),
        x.renorm(INF, 1, 0.5),
    ],
    "losses": lambda x, i: [
        F.cross_entropy(x, i[:, 0]),
        F.smooth_l1_loss(x, x + 1),
        F.mse_loss(x, x * 2),
    ],
    "scatter amax": scattered("amax"),
    "scatter amin": scattered("amin"),
    "scatter amax, alone": scattered("amax", False),
    "scatter amin, alone": scattered("amin", False),
    "scatter prod": scattered("prod"),
    "scatter mean": scattered("mean"),
    "scatter sum": lambda x, i: [
        torch.zeros_like(x).scatter_add(0, i, x),
        torch.zeros_like(x).index_add(0, i[:, 0], x),
    ],
    "segments": lambda x, i: [
        torch.segment_reduce(x, r, lengths=i[:4, 0] * 0 + 4, axis=0) for r in ("max", "min", "sum")
    ],
    "cumulative": lambda x, i: [f(x, d) for f in (torch.cumsum, torch.cumprod) for d in (0, 1)],
    "cummax": lambda x, i: (
        [x.cummax(d).values for d in (0, 1)] + [x.cummin(d).values for d in (0, 1)]
    ),
    "logcumsumexp": lambda x, i: [x.logcumsumexp(0), x.logcumsumexp(1)],
    "sorted": lambda x, i: [
        x.sort(0).values,
        x.sort(1, descending=True).values,
        x.msort(),
        x.topk(3, 0).values,
    ],
    "kth": lambda x, i: [x.kthvalue(3, 0).values, x.topk(2, 1, largest=False).values],
    "compared": lambda x, i: [
        f(x, x.flip(0)) for f in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
    ],
    "larger": lambda x, i: [
        f(x, x.flip(0)) for f in (torch.maximum, torch.minimum, torch.fmax, torch.fmin)
    ],
    "equal": lambda x, i: [
        torch.tensor([x.equal(x), x.equal(x.clone()), x.allclose(x, equal_nan=True)]),
        x.isclose(x),
    ],
    "classes": lambda x, i: [
        x.isnan().any(0),
        x.isinf().sum(1),
        x.isfinite().all(0),
        x.signbit(),
        x.sign(),
        x.isposinf(),
    ],
    "clamped": lambda x, i: [
        x.clamp(0, 1),
        x.clamp_min(0),
        x.nan_to_num(),
        torch.where(x > 0, x, x.amax(0)),
    ],
    "found": lambda x, i: [
        (x == x.amax(0)).nonzero(),
        torch.isin(x, x[:2]),
        x.unique()[:2],
        torch.bucketize(x, x[:1, 0]),
    ],
    "pooled": lambda x, i: [
        F.max_pool1d(x.t()[None], 3, 1, 1),
        F.adaptive_max_pool1d(x.t()[None], 4),
    ],
    "distances": lambda x, i: (
        [torch.cdist(x[:, :1], x[:3, :1], p) for p in (1.0, INF)] + [torch.histc(x[:, 0], 4)]
    ),
    "differences": lambda x, i: [
        x.diff(dim=0),
        x.flip(0),
        x.roll(3, 0),
        x.trace() + x.logical_xor(x.roll(1, 0)).sum(),
    ],
    "bits": lambda x, i: [x & x.roll(1, 0), x | x.roll(1, 0), x ^ x.roll(1, 0), ~x],
}


def cases() -> list[Any]:
    """Those of floats as all others; of the other dtypes some each day."""
    slow = (pytest.mark.slow("rows"),)
    return [
        pytest.param(name, dtype, id=f"{name} of {str(dtype)[6:]}", marks=slow if more else ())
        for more, dtypes in enumerate((DTYPES[:1], DTYPES[1:]))
        for name in REDUCTIONS
        for dtype in dtypes
    ]


def ours(x: torch.Tensor, spec: tuple[Any, ...]) -> torch.Tensor:
    return distribute_tensor(x, Mesh((2, 4), ("data", "model")), spec)


@pytest.mark.filterwarnings("ignore:.*runs on the CPU", "ignore:.*in beta")
@pytest.mark.parametrize(("name", "dtype"), cases())
def test_special_values_spread_over_chips_are_those_of_the_cpu(
    name: str, dtype: torch.dtype
) -> None:
    x, i, call = special(dtype), places(), REDUCTIONS[name]
    try:
        expected = call(x, i)
    except (RuntimeError, TypeError, NotImplementedError):
        pytest.skip(
            f"PyTorch's CPU has none of {dtype}"
        )  # a row of the table is for several dtypes
    for spec in SPECS:
        found = [y.cpu() for y in call(ours(x, spec), ours(i, spec))]
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            torch.testing.assert_close(
                a, b, equal_nan=True, msg=lambda text, k=k, spec=spec: f"{spec}, result {k}: {text}"
            )
