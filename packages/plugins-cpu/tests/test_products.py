"""Products of matrices are in the form that XLA has fast code for, and give what PyTorch's CPU does."""

from __future__ import annotations

import random
import re

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import torch_pjrt

BF16, F32 = torch.bfloat16, torch.float32


def _linear(n_rows: int, n: int, columns: int, dtype: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (n_rows, n), generator=generator).to(dtype)
    weight = torch.randint(-3, 4, (columns, n), generator=generator).to(dtype)
    return torch.nn.functional.linear(x.to(device), weight.to(device))


@pytest.mark.parametrize(
    ("n_rows", "n", "dtype", "product"),
    [
        (1, 64, F32, "contracting_dims = [1] x [1]; 1x64 by 8x64 -> 1x8xf32"),
        (4, 64, F32, "contracting_dims = [1] x [0]; 4x64 by 64x8 -> 4x8xf32"),
        (4, 64, BF16, "contracting_dims = [1] x [1]; 4x64 by 8x64 -> 4x8xf32"),
        (1, 2048, BF16, "contracting_dims = [1] x [0]; 1x2048 by 2048x8 -> 1x8xf32"),
        (1, 2049, BF16, "contracting_dims = [1] x [1]; 2x2049 by 8x2049 -> 2x8xf32"),
    ],
)
def test_linear_layers_contract_what_is_fast(
    n_rows: int, n: int, dtype: torch.dtype, product: str
) -> None:
    text = torch_pjrt.to_stablehlo(_linear(n_rows, n, 8, dtype, "pjrt"))

    form = (
        r"(contracting_dims = \S+ x \S+),.*tensor<(\w+)x\w+>, tensor<(\w+)x\w+>\) -> tensor<(\w+)>"
    )
    assert [
        f"{dims}; {x} by {y} -> {z}" for dims, x, y, z in re.findall(rf"dot_general.*{form}", text)
    ] == [product]


@pytest.mark.parametrize("dtype", [BF16, F32, torch.float16, torch.float64])
@pytest.mark.parametrize(
    ("n_rows", "n", "columns"),
    [(1, 16, 8), (1, 2100, 8), (1, 2100, 1), (2, 16, 8), (0, 8, 4), (1, 0, 3), (1, 1, 1)],
)
def test_values_are_pytorchs(n_rows: int, n: int, columns: int, dtype: torch.dtype) -> None:
    """Of small whole numbers, so that sums are exact in float32, whatever their order."""
    expected = _linear(n_rows, n, columns, dtype, "cpu")
    assert torch.equal(_linear(n_rows, n, columns, dtype, "pjrt").cpu(), expected)


@pytest.mark.parametrize("n_rows", [1, 3])
def test_other_forms_give_pytorchs_values(n_rows: int) -> None:
    """Factors that are not transposed, batches, gradients, products within a loop."""

    def forms(device: str) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randint(-2, 3, (n_rows, 6), generator=generator).to(device, BF16)
        weight = torch.randint(-2, 3, (6, 6), generator=generator).to(device, BF16)
        x.requires_grad_()
        weight.requires_grad_()
        results = [
            x @ weight,
            torch.einsum("rk,mk->rm", x, weight),
            x[None] @ weight[None],
            weight @ x.t(),
        ]
        return [*results, *torch.autograd.grad([r.sum() for r in results], (x, weight))]

    for found, expected in zip(forms("pjrt"), forms("cpu"), strict=True):
        assert torch.equal(found.cpu(), expected)


def _gradients(seed: int, device: str) -> list[Tensor]:
    """Of a product of two matrices or batches of them, transposed or not, and of another made of it."""
    draw = random.Random(seed)
    batch = draw.choice([(), (), (3,), (2, 3)])
    m, n, k, columns = (draw.choice([1, 3, 6, 7, 8, 16, 17, 33]) for _ in range(4))
    turned = [draw.random() < 0.5 for _ in range(4)]
    generator = torch.Generator().manual_seed(seed)
    x, y, z = (
        torch.randint(-1, 2, (*batch, *shape), generator=generator)
        .to(device, BF16)
        .requires_grad_()
        for shape in [
            (k, m) if turned[0] else (m, k),
            (n, k) if turned[1] else (k, n),
            (n, columns),
        ]
    )
    product = torch.matmul(x.mT if turned[0] else x, y.mT if turned[1] else y)
    result = torch.tanh(product * 1.5)
    if turned[3]:
        result = result @ z
    if turned[2]:
        result = result.mT
    loss = result.abs().pow(2).sum()
    gradients = torch.autograd.grad(loss, [x, y, z], allow_unused=True)
    return [result.detach().cpu(), *(g.cpu() for g in gradients if g is not None)]


@pytest.mark.parametrize("seed", range(40))
def test_gradients_of_transposed_products_are_pytorchs(seed: int) -> None:
    """XLA computes some of them only where their factors are laid out as it first expected."""
    found, expected = _gradients(seed, "pjrt"), _gradients(seed, "cpu")
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=1.6e-2, atol=0.05 * theirs.abs().max().item())
