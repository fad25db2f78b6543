"""Samples for lowering/random.py: dtype and shape as PyTorch's, values of the right distribution.

Bounds on mean and deviation are six standard errors wide, for the number of values that are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from check import Sample, sample
from torch_pjrt import operators
from torch_pjrt.overloads import aten

N = 20_000
BF16 = torch.bfloat16
Test = Callable[[torch.Tensor], None]


def drawn(op: Any, *args: Any, test: Test, **kwargs: Any) -> Sample:
    def compare(actual: Any, expected: Any) -> None:
        ours, theirs = (x[0] if isinstance(x, tuple) else x for x in (actual, expected))
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        test(ours)
        test(theirs)  # PyTorch's own draw must pass too, or the test is wrong

    return Sample(op, args, kwargs, why="values are random", compare=compare)


def around(mean: float, std: float, low: float, high: float) -> Test:
    """Values in [low, high), with this mean and standard deviation."""

    def test(x: torch.Tensor) -> None:
        x = x.double()
        n = x.numel()
        assert x.min() >= low
        assert x.max() < high
        assert abs(x.mean() - mean) <= 6 * std / n**0.5 + 2e-3 * abs(mean)
        assert abs(x.std() - std) <= 6 * 2 * std / n**0.5 + 2e-3 * std + 1e-6

    return test


def complex_around(mean: float, std: float, low: float, high: float) -> Test:
    def test(x: torch.Tensor) -> None:
        around(mean, std, low, high)(x.real)
        around(mean, std, low, high)(x.imag)

    return test


def quantiles(*expected: float) -> Test:
    """The quartiles, for distributions without moments; within a twentieth of their distance."""

    def test(x: torch.Tensor) -> None:
        quartiles = x.double().quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        slack = (expected[2] - expected[0]) / 20
        torch.testing.assert_close(quartiles, torch.tensor(expected).double(), atol=slack, rtol=0)

    return test


def shares(*expected: float) -> Test:
    """How often each class comes up."""

    def test(x: torch.Tensor) -> None:
        counted = torch.bincount(x.flatten(), minlength=len(expected)).double() / x.numel()
        torch.testing.assert_close(counted, torch.tensor(expected).double(), atol=0.02, rtol=0)
        for share, wanted in zip(counted, expected, strict=True):
            assert wanted or not share

    return test


def permuted(x: torch.Tensor) -> None:
    assert x.sort().values.tolist() == list(range(x.numel()))
    assert x.numel() < 10 or x.tolist() != list(range(x.numel()))


def without_replacement(x: torch.Tensor) -> None:
    for row in x:
        assert len(set(row.tolist())) == row.numel()
    assert not (x == 1).any()


def empty(x: torch.Tensor) -> None:
    assert x.numel() == 0


inf = float("inf")
unit, gauss = around(0.5, 12**-0.5, 0, 1), around(0, 1, -7, 7)
one = torch.empty(N).fill_(7)
weights = torch.tensor([0.2, 0.0, 0.5, 0.3])
floats = (torch.float32, torch.float64, torch.float16, BF16)
random_from = getattr(aten.random, "from")
rrelu = aten.rrelu_with_noise_functional.default


def slopes(x: torch.Tensor) -> None:
    around(-0.2, 0.1 / 12**0.5, -0.2501, -0.15)(x)


SAMPLES: list[Sample] = [
    *[drawn(aten.rand.default, [N], dtype=d, test=unit) for d in (torch.float32, torch.float64)],
    drawn(aten.rand.default, [N], dtype=torch.float16, test=unit),
    drawn(aten.rand.default, [N], dtype=BF16, test=around(0.5, 12**-0.5, 0, 1)),
    drawn(aten.rand.default, [100, 200], test=unit),
    drawn(aten.rand.default, [0, 3], test=empty),
    drawn(aten.rand.default, [N], dtype=torch.complex64, test=complex_around(0.5, 12**-0.5, 0, 1)),
    drawn(aten.rand.generator, [N], generator=None, test=unit),
    *[drawn(aten.randn.default, [N], dtype=d, test=gauss) for d in floats],
    drawn(aten.randn.default, [N], dtype=torch.complex64, test=complex_around(0, 0.5**0.5, -7, 7)),
    drawn(aten.randn.generator, [N], generator=None, test=gauss),
    drawn(aten.randint.default, 10, [N], test=around(4.5, 8.25**0.5, 0, 10)),
    drawn(aten.randint.generator, 10, [N], generator=None, test=around(4.5, 8.25**0.5, 0, 10)),
    drawn(aten.randint.low, -5, 5, [N], dtype=torch.int32, test=around(-0.5, 8.25**0.5, -5, 5)),
    drawn(aten.randint.low, -5, 5, [N], dtype=torch.float32, test=around(-0.5, 8.25**0.5, -5, 5)),
    drawn(
        aten.randint.low, -(2**62), 2**62, [N], test=around(0, 2**63 / 12**0.5, -(2**62), 2**62)
    ),
    drawn(
        aten.randint.low_generator, 5, 7, [N], generator=None, test=around(5.5, 0.5, 5, 7)
    ),
    drawn(aten.randperm.default, 1000, test=permuted),
    drawn(aten.randperm.default, 0, test=permuted),
    drawn(aten.randperm.default, 1000, dtype=torch.int32, test=permuted),
    drawn(aten.randperm.generator, 1000, generator=None, test=permuted),
    drawn(aten.uniform.default, one, test=unit),
    drawn(aten.uniform.default, one, -3.0, 5.0, test=around(1, 8 / 12**0.5, -3, 5)),
    drawn(aten.uniform.default, one.double(), 2.0, 3.0, test=around(2.5, 12**-0.5, 2, 3)),
    drawn(aten.uniform.default, one.bfloat16(), test=unit),
    drawn(aten.normal_functional.default, one, test=gauss),
    drawn(aten.normal_functional.default, one, 3.0, 0.5, test=around(3, 0.5, -1, 7)),
    drawn(aten.normal_functional.default, one.bfloat16(), 3.0, 0.5, test=around(3, 0.5, -1, 7)),
    drawn(aten.log_normal.default, one, 0.5, 0.4, test=around(1.786, 0.744, 0, 20)),
    drawn(aten.exponential.default, one, test=around(1, 1, 1e-30, 30)),
    drawn(aten.exponential.default, one, 4.0, test=around(0.25, 0.25, 1e-30, 8)),
    drawn(aten.exponential.default, one.double(), 4.0, test=around(0.25, 0.25, 1e-30, 8)),
    drawn(aten.cauchy.default, one, test=quantiles(-1, 0, 1)),
    drawn(aten.cauchy.default, one, 3.0, 2.0, test=quantiles(1, 3, 5)),
    drawn(aten.geometric.default, one, 0.25, test=around(4, 12**0.5, 1, 100)),
    drawn(aten.geometric.default, one.long(), 0.25, test=around(4, 12**0.5, 1, 100)),
    drawn(aten.random.default, one, test=around(2**23, 2**24 / 12**0.5, 0, 2**24 + 1)),
    drawn(aten.random.default, one.to(torch.uint8), test=around(127.5, 73.9, 0, 256)),
    drawn(aten.random.default, one.bool(), test=around(0.5, 0.5, 0, 2)),
    drawn(aten.random.default, one.long(), test=around(2**62, 2**63 / 12**0.5, 0, inf)),
    drawn(aten.random.to, one, 10, test=around(4.5, 8.25**0.5, 0, 10)),
    drawn(random_from, one.int(), -5, 5, test=around(-0.5, 8.25**0.5, -5, 5)),
    drawn(random_from, one.to(torch.uint8), 5, None, test=around(130, 72.46, 5, 256)),
    drawn(aten.bernoulli.default, one * 0 + 0.3, test=around(0.3, 0.21**0.5, 0, 1.1)),
    drawn(aten.bernoulli.default, one.double() * 0 + 1, test=around(1, 0, 1, 1.1)),
    drawn(aten.bernoulli.p, one.int(), 0.3, test=around(0.3, 0.21**0.5, 0, 2)),
    drawn(aten.bernoulli.p, one.bool(), 0.3, test=around(0.3, 0.21**0.5, 0, 2)),
    drawn(aten.bernoulli.Tensor, one, torch.tensor(0.3), test=around(0.3, 0.21**0.5, 0, 1.1)),
    drawn(aten.normal.Tensor_Tensor, one, one * 2, test=around(7, 14, -95, 110)),
    drawn(aten.normal.Tensor_Tensor, one[:1], one.double(), test=around(7, 7, -45, 60)),
    drawn(aten.normal.Tensor_float, one, 2.0, test=around(7, 2, -8, 22)),
    drawn(aten.normal.float_Tensor, 1.0, one, test=around(1, 7, -50, 52)),
    drawn(aten.normal.float_float, 1.0, 2.0, [N], test=around(1, 2, -14, 16)),
    drawn(aten.multinomial.default, weights, N, True, test=shares(0.2, 0, 0.5, 0.3)),
    drawn(
        aten.multinomial.default, weights.expand(9, 4) * 3, N, True, test=shares(0.2, 0, 0.5, 0.3)
    ),
    drawn(aten.multinomial.default, weights.expand(N, 4), 1, test=shares(0.2, 0, 0.5, 0.3)),
    drawn(aten.multinomial.default, weights.expand(500, 4), 3, test=without_replacement),
    drawn(aten.multinomial.default, weights.half(), N, True, test=shares(0.2, 0, 0.5, 0.3)),
    # So many that each draw is searched for instead of compared with all.
    drawn(
        aten.multinomial.default, torch.ones(2, 900), N, True, test=around(449.5, 259.8, 0, 900)
    ),
    *(
        sample(operators.weights_fault, torch.tensor([[0.0, 2.0], [1.0, w]]).to(dtype))
        for w in (0.0, -1.0, math.inf, -math.inf, math.nan)
        for dtype in (torch.float32, torch.float16, torch.float64)
    ),
    sample(operators.weights_fault, torch.zeros(3)),
    sample(operators.weights_fault, torch.tensor([[0.0, 0.0], [1.0, 2.0]])),
    drawn(aten.poisson.default, one, test=around(7, 7**0.5, 0, 40)),
    drawn(aten.poisson.default, one * 0 + 0.5, test=around(0.5, 0.5**0.5, 0, 20)),
    drawn(aten.binomial.default, one + 3, one * 0 + 0.25, test=around(2.5, 1.875**0.5, 0, 11)),
    drawn(aten.binomial.default, one[:1] + 3, one * 0 + 0.25, test=around(2.5, 1.875**0.5, 0, 11)),
    drawn(aten._standard_gamma.default, one, test=around(7, 7**0.5, 0, 50)),
    drawn(aten._standard_gamma.default, one.double(), test=around(7, 7**0.5, 0, 50)),
    drawn(
        aten._sample_dirichlet.default,
        torch.ones(N // 4, 4) * 2,
        test=around(0.25, (3 / 16 / 9) ** 0.5, 0, 1.001),
    ),
    drawn(rrelu, -one / 7, one, 0.15, 0.25, True, test=slopes),
    drawn(rrelu, -one / 7, one, 0.15, 0.25, False, test=around(-0.2, 0, -0.2001, 0)),
    drawn(rrelu, one, one, 0.15, 0.25, True, test=around(7, 0, 7, 7.1)),
]  # fmt: skip
