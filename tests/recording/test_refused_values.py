"""Values that the CPU refuses are refused: numbers in each call, tensors at the call or at the next read.

Each case is called with good values first, so that its signature is known when the bad ones come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kept_tensors import kept_by_checks

Make = Callable[..., torch.Tensor]
NAN = float("nan")
HALF, BYTE, INT = torch.float16, torch.uint8, torch.int32

eye = torch.eye(3).tolist()
linalg = torch.linalg


# What is called with `t`, which makes a tensor, and good or bad values; the good ones; the bad ones.
def by_itself(x: torch.Tensor) -> torch.Tensor:
    return x.floor_divide_(x)


CASES: dict[str, tuple[Callable[[Make, Any], Any], Any, Any]] = {
    "masked_scatter": (
        lambda t, v: t([0.0] * 4).masked_scatter(t(v), t([1.0] * 3)),
        [True, False, True, True],
        [True] * 4,
    ),
    "masked_scatter_": (
        lambda t, v: t([0.0] * 4).masked_scatter_(t(v), t([1.0] * 3)),
        [True, False, True, True],
        [True] * 4,
    ),
    "embedding_bag of offsets": (
        lambda t, v: F.embedding_bag(t([0, 1]), t([[1.0, 2.0]] * 3), t(v)),
        [0, 1],
        [0, 5],
    ),
    "embedding_bag from later on": (
        lambda t, v: F.embedding_bag(t([0, 1]), t([[1.0, 2.0]] * 3), t(v)),
        [0],
        [1],
    ),
    "embedding_bag of maxima": (
        lambda t, v: F.embedding_bag(t(v), t([[1.0, 2.0]] * 3), t([0]), mode="max"),
        [0, 2],
        [0, 4],
    ),
    "max_unpool1d": (lambda t, v: F.max_unpool1d(t([[1.0, 2.0]]), t([v]), (2,)), [0, 3], [0, 9]),
    "max_unpool2d": (
        lambda t, v: F.max_unpool2d(t([[[1.0, 2.0]]]), t([[v]]), (2, 2)),
        [0, 3],
        [-1, 0],
    ),
    "max_unpool3d": (
        lambda t, v: F.max_unpool3d(t([[[[1.0, 2.0]]]]), t([[[v]]]), (2, 2, 2)),
        [0, 3],
        [0, 99],
    ),
    "normal of a number and deviations": (
        lambda t, v: torch.normal(0.0, t(v)),
        [1.0, 0.0],
        [1.0, -1.0],
    ),
    "normal of means and deviations": (
        lambda t, v: torch.normal(t([1.0, 1.0]), t(v)),
        [1.0, 2.0],
        [1.0, -1.0],
    ),
    "normal of means and a number": (lambda t, v: torch.normal(t([1.0, 1.0]), v), 1.0, -1.0),
    "normal of numbers": (lambda t, v: torch.normal(0.0, v, (2,), device=t([1]).device), 1.0, -1.0),
    "bernoulli": (lambda t, v: torch.bernoulli(t(v)), [0.5, 1.0], [0.5, 2.0]),
    "bernoulli of nan": (lambda t, v: torch.bernoulli(t(v)), [0.5, 1.0], [0.5, NAN]),
    "bernoulli of a number": (lambda t, v: torch.bernoulli(t([0.0, 0.0]), v), 0.5, 2.0),
    "bernoulli_ of a tensor": (
        lambda t, v: t([0.0, 0.0]).bernoulli_(t(v)),
        [0.5, 0.5],
        [0.5, -0.1],
    ),
    "uniform_": (lambda t, v: t([0.0, 0.0]).uniform_(*v), (0, 1), (2, 1)),
    "uniform_ over too much": (lambda t, v: t([0.0, 0.0]).uniform_(*v), (0, 1), (-3e38, 3e38)),
    "uniform_ to infinity": (lambda t, v: t([0.0, 0.0]).uniform_(*v), (0, 1), (0, float("inf"))),
    "uniform_ of doubles": (
        lambda t, v: t([0.0, 0.0], dtype=torch.float64).uniform_(*v),
        (0, 1),
        (-1.7e308, 1.7e308),
    ),
    "uniform_ of halves": (
        lambda t, v: t([0.0, 0.0], dtype=HALF).uniform_(*v),
        (0, 1),
        (-1e6, 1e6),
    ),
    "poisson": (lambda t, v: torch.poisson(t(v)), [0.5, 2.0], [0.5, -2.0]),
    "poisson of nan": (lambda t, v: torch.poisson(t(v)), [0.5, 2.0], [0.5, NAN]),
    "normal of nan": (lambda t, v: torch.normal(0.0, t(v)), [1.0, 0.0], [1.0, NAN]),
    "lu_unpack": (lambda t, v: torch.lu_unpack(t(eye), t(v, dtype=INT)), [1, 2, 3], [1, 5, 3]),
    "lu_unpack below 1": (
        lambda t, v: torch.lu_unpack(t(eye), t(v, dtype=INT)),
        [1, 2, 3],
        [0, 2, 3],
    ),
    "lu_solve": (
        lambda t, v: linalg.lu_solve(t(eye), t(v, dtype=INT), t([[1.0]] * 3)),
        [1, 2, 3],
        [1, 5, 3],
    ),
    "lu_solve below 1": (
        lambda t, v: linalg.lu_solve(t(eye), t(v, dtype=INT), t([[1.0]] * 3)),
        [1, 2, 3],
        [0, 2, 3],
    ),
    "repeat_interleave to a size": (
        lambda t, v: torch.repeat_interleave(t([1.0, 2.0]), t(v), output_size=3),
        [1, 2],
        [1, 3],
    ),
    "repeat_interleave of rows to a size": (
        lambda t, v: torch.repeat_interleave(t([[1.0, 2.0]] * 2), t(v), dim=0, output_size=3),
        [1, 2],
        [1, 1],
    ),
    "embedding_bag of offsets that decrease": (
        lambda t, v: F.embedding_bag(t([0, 1]), t([[1.0, 2.0]] * 3), t(v)),
        [0, 1, 2],
        [0, 2, 1],
    ),
    "quantile": (lambda t, v: torch.quantile(t([1.0, 2.0, 3.0]), t(v)), [0.5, 1.0], [0.5, 1.5]),
    "quantile below zero": (lambda t, v: torch.quantile(t([1.0, 2.0]), t(v)), [0.5], [-0.5]),
    "quantile of nan": (lambda t, v: torch.quantile(t([1.0, 2.0]), t(v)), [0.5], [NAN]),
    "quantile of a number": (lambda t, v: torch.quantile(t([1.0, 2.0]), v), 0.5, NAN),
    "quantile of a 0-d tensor": (lambda t, v: torch.quantile(t([1.0, 2.0]), t(v)), 0.5, 1.5),
    "quantile into": (
        lambda t, v: torch.quantile(t([1.0, 2.0]), t(v), out=t([0.0, 0.0])),
        [0.5, 1.0],
        [0.5, 1.5],
    ),
    "quantile with gradients": (
        lambda t, v: torch.quantile(t([1.0, 2.0], requires_grad=True) + 0, t(v)).sum().backward(),
        [0.5, 1.0],
        [0.5, 1.5],
    ),
    "nanquantile": (lambda t, v: torch.nanquantile(t([1.0, NAN]), t(v)), [0.5, 1.0], [0.5, -0.5]),
    "nanquantile of a number": (lambda t, v: torch.nanquantile(t([1.0, NAN]), v), 0.5, -0.5),
    "one_hot": (lambda t, v: F.one_hot(t(v), 3), [0, 2], [0, 3]),
    "one_hot below zero": (lambda t, v: F.one_hot(t(v), 3), [0, 2], [0, -1]),
    "one_hot of as many as there are": (lambda t, v: F.one_hot(t(v)), [0, 2], [2, -1]),
    "one_hot of no classes": (lambda t, v: F.one_hot(t([0, 1]), v), 2, 0),
    "_assert_async": (lambda t, v: torch._assert_async(t(v)), 1.5, 0.0),
    "_assert_async with a text": (lambda t, v: torch._assert_async(t(v), "no"), True, False),
    "_assert_async without one": (lambda t, v: torch._assert_async(t([v]), ""), 1, 0),
    "_assert_async of two": (lambda t, v: torch._assert_async(t(v), "no"), [1], [1, 1]),
    "searchsorted of a number": (
        lambda t, v: torch.searchsorted(t([1, 2, 3]), 2, sorter=t(v)),
        [0, 1, 2],
        [0, 1, 7],
    ),
    "segment_reduce of offsets that decrease": (
        lambda t, v: torch.segment_reduce(t([1.0] * 4), "sum", offsets=t(v)),
        [0, 2, 4],
        [0, 3, 2],
    ),
    "segment_reduce of too few": (
        lambda t, v: torch.segment_reduce(t([1.0] * 4), "sum", lengths=t(v)),
        [2, 2],
        [2, 1],
    ),
    "segment_reduce below zero": (
        lambda t, v: torch.segment_reduce(t([1.0] * 4), "sum", lengths=t(v)),
        [2, 2],
        [5, -1],
    ),
    "x // y": (lambda t, v: t([4, 5]) // t(v), [1, 2], [1, 0]),
    "x // number": (lambda t, v: t([4, 5]) // v, 2, 0),
    "number // y": (lambda t, v: 5 // t(v), [4, 5], [4, 0]),
    "x //= y": (lambda t, v: t([4, 5]).floor_divide_(t(v)), [1, 2], [1, 0]),
    "x // x": (lambda t, v: by_itself(t(v)), [1, 2], [1, 0]),
    "x // y of int8": (
        lambda t, v: t([4, 5], dtype=torch.int8) // t(v, dtype=torch.int8),
        [1, 2],
        [1, 0],
    ),
    "x // a 0-d y": (lambda t, v: t([4, 5]) // t(v), 2, 0),
    "div to zero": (lambda t, v: torch.div(t([4, 5]), t(v), rounding_mode="trunc"), [1, 2], [1, 0]),
    "div by a number to zero": (lambda t, v: torch.div(t([4, 5]), v, rounding_mode="trunc"), 2, 0),
    "x % y": (lambda t, v: t([4, 5]) % t(v), [1, 2], [1, 0]),
    "x % y of bytes": (lambda t, v: t([4, 5], dtype=BYTE) % t(v, dtype=BYTE), [1, 2], [1, 0]),
    "x % number": (lambda t, v: t([4, 5]) % v, 2, 0),
    "number % y": (lambda t, v: 5 % t(v), [4, 5], [4, 0]),
    "fmod": (lambda t, v: torch.fmod(t([4, 5]), t(v)), [1, 2], [1, 0]),
    "fmod by a number": (lambda t, v: torch.fmod(t([4, 5]), v), 2, 0),
    "cholesky_ex": (lambda t, v: linalg.cholesky_ex(t(eye) * v, check_errors=True), 1.0, -1.0),
    "inv_ex": (lambda t, v: linalg.inv_ex(t(eye) * v, check_errors=True), 1.0, 0.0),
    "inv_ex of a batch": (
        lambda t, v: linalg.inv_ex(t([eye, eye]) * t([[[1.0]], [[v]]]), check_errors=True),
        1.0,
        0.0,
    ),
    "solve_ex": (
        lambda t, v: linalg.solve_ex(t(eye) * v, t([[1.0]] * 3), check_errors=True),
        1.0,
        0.0,
    ),
    "lu_factor_ex": (lambda t, v: linalg.lu_factor_ex(t(eye) * v, check_errors=True), 1.0, 0.0),
    "ldl_factor_ex": (lambda t, v: linalg.ldl_factor_ex(t(eye) * v, check_errors=True), 1.0, 0.0),
    "eig": (lambda t, v: linalg.eig(t(eye) * v), 1.0, NAN),
    "eigh": (lambda t, v: linalg.eigh(t(eye) * v), 1.0, NAN),
    "eigvalsh": (lambda t, v: linalg.eigvalsh(t(eye) * v, UPLO="U"), 1.0, NAN),
    "svd": (lambda t, v: linalg.svd(t(eye) * v), 1.0, NAN),
    "svd of a batch": (lambda t, v: linalg.svd(t([eye, eye]) * t([[[1.0]], [[v]]])), 1.0, NAN),
    "svdvals": (lambda t, v: linalg.svdvals(t(eye) * v), 1.0, NAN),
    "matrix_rank": (lambda t, v: linalg.matrix_rank(t(eye) * v), 1.0, NAN),
    "cholesky_inverse": (lambda t, v: torch.cholesky_inverse(t(eye) * v), 1.0, 0.0),
    "multi_margin_loss": (
        lambda t, v: F.multi_margin_loss(t([[1.0, 2.0, 3.0]] * 2), t(v)),
        [0, 2],
        [0, 3],
    ),
    "multilabel_margin_loss": (
        lambda t, v: F.multilabel_margin_loss(t([[1.0, 2.0, 3.0]]), t([v])),
        [0, 2, -1],
        [0, 7, -1],
    ),
    "binary_cross_entropy": (
        lambda t, v: F.binary_cross_entropy(t(v), t([1.0, 0.0])),
        [0.5, 1.0],
        [0.5, 1.5],
    ),
    "binary_cross_entropy to": (
        lambda t, v: F.binary_cross_entropy(t([0.5, 0.5]), t(v)),
        [0.5, 1.0],
        [0.5, 2.0],
    ),
    "searchsorted": (
        lambda t, v: torch.searchsorted(t([1, 2, 3]), t([2]), sorter=t(v)),
        [0, 1, 2],
        [0, 1, 7],
    ),
    "full of bytes": (lambda t, v: torch.full((2,), v, dtype=BYTE, device=t([1]).device), 3, 3000),
    "full of halves": (
        lambda t, v: torch.full((2,), v, dtype=HALF, device=t([1]).device),
        3.0,
        1e6,
    ),
    "fill_ of bytes": (lambda t, v: t([0, 0], dtype=BYTE).fill_(v), 3, 3000),
    "fill_ of halves": (lambda t, v: t([0, 0], dtype=HALF).fill_(v), 3.0, 1e6),
    "masked_fill": (lambda t, v: t([0, 0], dtype=HALF).masked_fill(t([True, False]), v), 3.0, 1e6),
    "index_fill": (lambda t, v: t([0, 0], dtype=HALF).index_fill(0, t([0]), v), 3.0, 1e6),
    "scatter of a number": (lambda t, v: t([0, 0], dtype=BYTE).scatter(0, t([0]), v), 3, 3000),
    "renorm": (lambda t, v: torch.renorm(t([[1.0, 2.0]] * 2), 2.0, 0, v), 1.0, -1.0),
    "huber_loss": (lambda t, v: F.huber_loss(t([1.0]), t([2.0]), delta=v), 1.0, -1.0),
    "celu": (lambda t, v: F.celu(t([1.0]), v), 1.0, 0.0),
}


def from_host(values: Any, **how: Any) -> torch.Tensor:
    return torch.tensor(values, device="pjrt", **how)


def on_device(values: Any, **how: Any) -> torch.Tensor:
    """A tensor of which the host knows no values."""
    return torch.stack([from_host(values, **how)])[0]


def refusal(call: Callable[[Make, Any], Any], make: Make, value: Any) -> tuple[type, str] | None:
    try:
        call(make, value)
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
    except Exception as error:
        return type(error), str(error).splitlines()[0]
    return None


@pytest.mark.filterwarnings("ignore:`aten.linalg_ldl_factor_ex")  # which runs on the CPU
@pytest.mark.parametrize("make", [from_host, on_device])
@pytest.mark.parametrize("name", CASES)
def test_a_bad_value_after_a_good_one_raises_what_the_cpu_raises(name: str, make: Make) -> None:
    call, good, bad = CASES[name]
    expected = refusal(call, torch.tensor, bad)

    assert refusal(call, make, good) is None
    assert expected is not None
    assert refusal(call, make, bad) == expected
    assert refusal(call, make, good) is None


@pytest.mark.parametrize("make", [from_host, on_device])
def test_a_row_past_the_table_of_bags_raises(make: Make) -> None:
    def bags(rows: list[int]) -> torch.Tensor:
        return F.embedding_bag(make(rows), torch.ones(3, 2, device="pjrt"), make([0]))

    assert bags([0, 2]).tolist() == [[1.0, 1.0]]
    with pytest.raises(
        RuntimeError, match=r"takes value 4 which is not in the valid range \[0, 3\)"
    ):
        bags([0, 4]).tolist()


def test_empty_tensors_divide_by_zero() -> None:
    empty = torch.empty(0, dtype=torch.int64, device="pjrt")

    assert (empty // 0).tolist() == []
    assert (empty // empty).tolist() == []


def test_floats_divide_by_zero() -> None:
    x = torch.tensor([1.0, -1.0], device="pjrt")

    assert (x // 0).tolist() == [float("inf"), -float("inf")]
    assert (x // torch.tensor([0, 0], device="pjrt")).tolist() == [float("inf"), -float("inf")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_checks_of_values_keep_no_tensor() -> None:
    found = {
        name: kept_by_checks(lambda make, call=call, good=good: call(make, good))
        for name, (call, good, _) in CASES.items()
    }

    assert [name for name, (n_kept, _) in found.items() if n_kept] == []
    assert sum(has_checks for _, has_checks in found.values()) > 30
