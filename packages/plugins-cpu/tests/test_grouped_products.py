"""Products group by group, computed in blocks: PyTorch's values and gradients, for any groups."""

from __future__ import annotations

import re

import pytest
import torch

import torch_pjrt

Case = tuple[int, int, int, tuple[int, ...]]

# rows  k columns  where the groups end
CASES = [
    (16, 8, 24, (2, 5, 16)),
    (16, 8, 24, (0, 0, 16)),
    (16, 8, 24, (16, 16, 16)),
    (16, 8, 24, (0, 0, 0)),
    (16, 8, 24, (2, 5, 7)),  # rows behind the last group
    (304, 8, 16, (1, 2, 150, 151, 280, 304)),  # more rows than a block has
    (304, 8, 16, tuple(range(8, 312, 8))),  # more groups than rows of a block
    (8, 16, 8, (8,)),
]


def results(
    device: str, x: torch.Tensor, weight: torch.Tensor, ends: tuple[int, ...]
) -> list[torch.Tensor]:
    """The product and the gradients of both factors, without the rows that the CPU leaves as they were."""
    offs, used = torch.tensor(ends, dtype=torch.int32, device=device), ends[-1]
    leaves = [t.to(device).requires_grad_() for t in (x, weight)]
    y = torch._grouped_mm(*leaves, offs=offs)
    cotangent = torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).bfloat16().to(y.dtype)
    of_x, of_weight = torch.autograd.grad(y, leaves, cotangent.to(device))
    return [t.detach().cpu() for t in (y[:used], of_x[:used], of_weight)]


def factors(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    rows, inner, columns, ends = case
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, inner, generator=generator)
    return x, torch.randn(len(ends), inner, columns, generator=generator)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_are_those_of_the_cpu(case: Case) -> None:
    x, weight = factors(case)

    ours, theirs = (results(device, x, weight, case[-1]) for device in ("pjrt", "cpu"))

    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bits_are_rounded_once(dtype: torch.dtype) -> None:
    x, weight = (t.to(dtype) for t in factors(CASES[5]))

    ours = results("pjrt", x, weight, CASES[5][-1])

    exact = results("cpu", x.float(), weight.float(), CASES[5][-1])
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a, b.to(dtype))


def test_rows_behind_the_last_group_are_zeros() -> None:
    x, weight = torch.ones(16, 8, device="pjrt"), torch.ones(2, 8, 8, device="pjrt")

    y = torch._grouped_mm(x, weight, offs=torch.tensor([3, 5], dtype=torch.int32, device="pjrt"))

    assert y.sum(1).tolist() == [64.0] * 5 + [0.0] * 11


def test_an_infinite_weight_of_one_group_is_not_seen_by_another() -> None:
    x, weight = torch.ones(16, 8), torch.ones(2, 8, 8)
    weight[1] = torch.inf
    offs = torch.tensor([8, 16], dtype=torch.int32)

    y = torch._grouped_mm(x.to("pjrt"), weight.to("pjrt"), offs=offs.to("pjrt"))

    assert torch.equal(y.cpu(), torch._grouped_mm(x, weight, offs=offs))


def test_no_group_is_multiplied_by_rows_of_all() -> None:
    x, weight = torch.ones(512, 16, device="pjrt"), torch.ones(32, 16, 16, device="pjrt")
    offs = torch.full((32,), 512, dtype=torch.int32, device="pjrt")

    text = torch_pjrt.to_stablehlo(torch._grouped_mm(x, weight, offs=offs))

    assert re.findall(r"stablehlo.dot_general.*\((tensor<[^>]*>)", text) == ["tensor<8x16xf32>"]
