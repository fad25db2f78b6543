"""Sums, products, quotients, roots and casts have the CPU's bits, alone and in chains that XLA simplifies.

The oracle is PyTorch on CPU, and NumPy for roots: PyTorch's own are off by a bit for some elements. Subnormal
numbers are not compared, nor what comes of them: XLA:CPU takes them for 0. TORCH_PJRT_CHAINS=400 tries more.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
CHAINS = int(os.environ.get("TORCH_PJRT_CHAINS", "60"))
NUMBERS = [7.5, 3, 0.1, -1.7, 1e-3, 12582912.0, 49]
ODD = [0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 1e-30, 1e30]

Step = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def root(x: torch.Tensor) -> torch.Tensor:
    if x.device.type == "pjrt":
        return torch.sqrt(x)
    wide = x.double() if x.dtype == torch.float64 else x.float()
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.sqrt(wide.numpy())).to(x.dtype)


#   name                kind        step: of what came before, another tensor and a number
STEPS: dict[str, tuple[str, Step]] = {
    "x + n":            ("sum",     lambda x, y, n: x + n),
    "n - x":            ("sum",     lambda x, y, n: n - x),
    "x - n":            ("sum",     lambda x, y, n: x - n),
    "x + y":            ("sum",     lambda x, y, n: x + y),
    "x - y":            ("sum",     lambda x, y, n: x - y),
    "y - x":            ("sum",     lambda x, y, n: y - x),
    "x * n":            ("product", lambda x, y, n: x * n),
    "x * y":            ("product", lambda x, y, n: x * y),
    "x * x":            ("product", lambda x, y, n: x * x),
    "x / n":            ("other",   lambda x, y, n: x / n),
    "n / x":            ("product", lambda x, y, n: n / x),  # PyTorch's is `n * (1 / x)`
    "x / y":            ("other",   lambda x, y, n: x / y),
    "y / x":            ("other",   lambda x, y, n: y / x),
    "x / 0-d":          ("other",   lambda x, y, n: x / torch.tensor(n, device=x.device)),
    "x * 0-d":          ("product", lambda x, y, n: x * torch.tensor(n, device=x.device)),
    "x / full":         ("other",   lambda x, y, n: x / torch.full_like(x, n)),
    "div_(n)":          ("other",   lambda x, y, n: x.clone().div_(n)),
    "x / n floor":      ("other",   lambda x, y, n: torch.div(x, n, rounding_mode="floor")),
    "x / n trunc":      ("other",   lambda x, y, n: torch.div(x, n, rounding_mode="trunc")),
    "foreach_div":      ("other",   lambda x, y, n: torch._foreach_div([x], n)[0]),
    "1 / x":            ("other",   lambda x, y, n: torch.reciprocal(x)),
    "-x":               ("same",    lambda x, y, n: -x),
    "|x|":              ("same",    lambda x, y, n: x.abs()),
    "root":             ("other",   lambda x, y, n: root(x.abs())),
    "to half and back": ("other",   lambda x, y, n: x.half().to(x.dtype)),
    "to bfloat16 and back": ("other", lambda x, y, n: x.bfloat16().to(x.dtype)),
    "to float and back": ("same",   lambda x, y, n: x.float().to(x.dtype)),
}  # fmt: skip


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(301, dtype=torch.float64, generator=generator) for _ in range(2))
    pairs = torch.tensor(list(itertools.product(ODD, ODD)), dtype=torch.float64)
    return torch.cat([x, pairs[:, 0]]).to(dtype), torch.cat([y, pairs[:, 1]]).to(dtype)


def is_subnormal(x: torch.Tensor) -> torch.Tensor:
    least = torch.finfo(torch.float32 if x.itemsize < 8 else x.dtype).tiny
    return (x != 0) & (x.abs() < least)


class Reference:
    """What steps give on CPU, one after the other, and where a subnormal number was on the way."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.passed = is_subnormal(x) | is_subnormal(x.float())

    def take(self, step: Step, y: torch.Tensor, n: float) -> None:
        self.x = step(self.x, y, n)
        self.passed |= is_subnormal(self.x) | is_subnormal(self.x.float())

    def misses(self, actual: torch.Tensor) -> int:
        """How many elements have other bits; nans are equal."""
        assert actual.dtype == self.x.dtype
        size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.itemsize]
        other = actual.view(size) != self.x.view(size)
        both_nan = actual.isnan() & self.x.isnan()
        return int((other & ~both_nan & ~self.passed).sum())


def fits(n: float, dtype: torch.dtype) -> bool:
    return n < torch.finfo(dtype).max


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_one_step_has_the_bits_of_the_cpu(step: str, dtype: torch.dtype) -> None:
    x, y = inputs(dtype)
    apply = STEPS[step][1]
    at, other = x.to("pjrt"), y.to("pjrt")
    numbers = [n for n in NUMBERS if fits(n, dtype)]
    results = [apply(at, other, n) for n in numbers]

    for n, result in zip(numbers, results, strict=True):
        reference = Reference(x)
        reference.take(apply, y, n)
        assert reference.misses(result.cpu()) == 0, n


def chains() -> list[list[tuple[str, float]]]:
    """Two to five steps with their numbers; no sum follows a product: LLVM may round both at once."""
    made = []
    draw = random.Random(0)
    for _ in range(CHAINS):
        chain: list[tuple[str, float]] = []
        last = "other"
        for _ in range(draw.randint(2, 5)):
            allowed = [s for s in STEPS if not (STEPS[s][0] == "sum" and last == "product")]
            step = draw.choice(allowed)
            chain.append((step, draw.choice(NUMBERS)))
            last = last if STEPS[step][0] == "same" else STEPS[step][0]
        made.append(chain)
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chains_in_one_program_have_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    x, y = inputs(dtype)
    at, other = x.to("pjrt"), y.to("pjrt")
    references, results = [], []
    for chain in chains():
        reference, result = Reference(x), at
        for step, n in chain:
            number = n if fits(n, dtype) else 1.5
            reference.take(STEPS[step][1], y, number)
            result = STEPS[step][1](result, other, number)
        references.append(reference)
        results.append(result)

    missed = [r.misses(result.cpu()) for r, result in zip(references, results, strict=True)]

    assert [(n, chain) for n, chain in zip(missed, chains(), strict=True) if n] == []


def test_a_sum_of_a_product_is_rounded_twice_or_once() -> None:
    x, y = (t[:301] for t in inputs(torch.float32))
    twice = x * y + x
    once = (x.double() * y.double() + x.double()).float()

    actual = (x.to("pjrt") * y.to("pjrt") + x.to("pjrt")).cpu()

    assert ((actual == twice) | (actual == once)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_difference_of_equal_squares_is_0(dtype: torch.dtype) -> None:
    """Or its root would be nan: windows of Kaiser begin and end with it."""
    x = inputs(dtype)[0][:301]
    x = x[(x * x).isfinite()]
    a, b = x.to("pjrt"), (-x).to("pjrt")

    difference = a * a - torch.pow(b, 2)

    assert not difference.cpu().any()


@pytest.mark.parametrize(
    "sign", [torch.abs, torch.neg, lambda x: -x.abs(), lambda x: x.neg().neg()]
)
def test_signs_hide_no_operation_from_what_rounds(sign: Callable[..., torch.Tensor]) -> None:
    """XLA knows that squares, roots and powers have no sign, and simplifies what is left."""
    x = torch.tensor([1e30, 1e-30, 3.3, 90.0, 0.1])
    makers = [
        lambda x: x * x,
        torch.exp,
        torch.sqrt,
        torch.exp2,
        lambda x: x / 3,
        lambda x: x + 0.1,
    ]
    users = [
        lambda y, x: torch.sqrt(y.abs()), lambda y, x: torch.log(y.abs()), lambda y, x: y / 0.3,
        lambda y, x: y * y, lambda y, x: y * sign(torch.exp(x)), lambda y, x: y - 0.7, lambda y, x: 7.5 / y,
    ]  # fmt: skip

    def results(x: torch.Tensor, *, apart: bool) -> list[torch.Tensor]:
        found = []
        for maker, user in itertools.product(makers, users):
            y = maker(x)
            if apart:
                torch.pjrt.synchronize()  # type: ignore[attr-defined]
                y = y.cpu().to(y.device)
            found.append(user(sign(y), x))
        return [y.cpu() for y in found]

    together = results(x.to("pjrt"), apart=False)
    for a, b in zip(together, results(x.to("pjrt"), apart=True), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_adding_a_large_number_and_taking_it_away_rounds() -> None:
    x = torch.tensor([0.3, 1.7, -2.4], device="pjrt")

    assert ((x + 12582912.0) - 12582912.0).tolist() == [0.0, 2.0, -2.0]


def test_numbers_that_change_divide_as_constants_do() -> None:
    x, _ = inputs(torch.float32)
    at = x.to("pjrt")
    for n in (7.5, 3.3, 1.1, 9.0):
        reference = Reference(x)
        reference.take(lambda x, y, n: x / n, x, n)
        assert reference.misses((at / n).cpu()) == 0
