"""Values are checked where only values decide the size, too; no size has a program of its own for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

Tensor = torch.Tensor
Compute = Callable[[Tensor, Tensor], Tensor]

HANDFUL = 3
SIZES = (1, 38, 75, 12, 97, 34)
ZEROS = (0, 0, 0, 0)

seed = torch.Generator().manual_seed(0)
whole = torch.arange(100)
numbers = torch.rand(100, generator=seed)
rows = torch.randn(100, 4, generator=seed)


def on(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.device)


def positions(*numbers: int, like: Tensor) -> Tensor:
    """Indices that the host does not know."""
    return torch.tensor(numbers, device=like.device) + 0


#   the mask's elements of each tensor: checked against a number, or against the size itself
CHECKED: dict[str, Compute] = {
    "binary_cross_entropy": lambda x, m: F.binary_cross_entropy(x[m], x[m]),
    "bernoulli": lambda x, m: torch.bernoulli((x[m] > 2).float()),
    "cross_entropy": lambda x, m: F.cross_entropy(on(rows, x)[m], on(whole, x)[m] % 4),
    "floor_divide": lambda x, m: on(whole, x)[m] // (on(whole, x)[m] + 1),
    "fmod": lambda x, m: on(whole, x)[m].fmod(on(whole, x)[m] + 1),
    "gather": lambda x, m: x[m].gather(0, positions(*ZEROS, like=x)),
    "index": lambda x, m: x[m][positions(*ZEROS, like=x)],
    "index_add": lambda x, m: torch.zeros_like(x).index_add(0, on(whole, x)[m], x[m]),
    "index_put": lambda x, m: x[m].index_put((positions(0, 0, like=x),), x[:2] * 0),
    "masked_scatter": lambda x, m: x.masked_scatter(m, x[m] + 1),
    "masked_scatter of rows": lambda x, m: on(rows, x).masked_scatter(m[:, None], on(rows, x)[m]),
    "remainder": lambda x, m: on(whole, x)[m] % (on(whole, x)[m] + 1),
    "scatter_add": lambda x, m: torch.zeros_like(x).scatter_add(0, on(whole, x)[m], x[m]),
}


def mask_of(size: int) -> Tensor:
    mask = torch.zeros(100, dtype=torch.bool)
    mask[torch.randperm(100, generator=seed)[:size]] = True
    return mask


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", CHECKED)
def test_six_sizes_compile_a_handful_of_programs(name: str, compiled: Callable[[], int]) -> None:
    compute = CHECKED[name]

    for size in SIZES:
        mask = mask_of(size)
        got = compute(numbers.to("pjrt"), mask.to("pjrt"))
        torch.testing.assert_close(got.cpu(), compute(numbers, mask))

    assert compiled() <= HANDFUL


#   values that are refused, among those that the mask leaves
REFUSED: dict[str, Compute] = {
    "binary_cross_entropy": lambda x, m: F.binary_cross_entropy(x[m] + 2, x[m]),
    "bernoulli": lambda x, m: torch.bernoulli(x[m] + 2),
    "floor_divide": lambda x, m: on(whole, x)[m] // (on(whole, x)[m] * 0),
    "masked_scatter": lambda x, m: x.masked_scatter(m, x[m][:-1]),
    "masked_scatter by more": lambda x, m: x.masked_scatter(torch.ones_like(m), x[m]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_are_refused_as_on_cpu(name: str) -> None:
    compute = REFUSED[name]

    for size in SIZES:
        mask = mask_of(size)
        with pytest.raises(RuntimeError) as expected:
            compute(numbers, mask)
        with pytest.raises(RuntimeError) as got:
            compute(numbers.to("pjrt"), mask.to("pjrt")).cpu()
        assert str(got.value).startswith(str(expected.value).splitlines()[0])


@pytest.mark.parametrize("size", SIZES)
def test_what_lies_past_the_elements_is_not_refused(size: int) -> None:
    mask = mask_of(size).to("pjrt")
    chances = torch.where(mask, numbers.to("pjrt"), 7.0)

    kept = torch.bernoulli(chances[mask]).cpu()

    assert kept.shape == (size,)
