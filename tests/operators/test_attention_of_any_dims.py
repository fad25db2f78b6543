"""Attention of any dims, and under each `sdpa_kernel`, is one operator, and gives what the CPU gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from quickly import compiled_quickly  # noqa: F401  all tests here

DEVICE = "pjrt"
OPERATOR = "_scaled_dot_product_fused_attention_overrideable"

#   what is special      dims before the positions, those of the mask, options
CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, dict[str, Any]]] = {
    "positions":           ((),         None,             {}),
    "heads":               ((3,),       None,             {"is_causal": True}),
    "heads, mask":         ((3,),       (3, 5, 7),        {}),
    "heads, one mask":     ((3,),       (5, 7),           {"scale": 0.3}),
    "two batches":         ((2, 3, 4),  None,             {"is_causal": True}),
    "a mask for each":     ((2, 3, 4),  (2, 3, 4, 5, 7),  {}),
    "of one batch":        ((2, 3, 4),  (3, 1, 5, 7),     {}),
    "of the other":        ((2, 3, 4),  (2, 1, 4, 1, 7),  {}),
    "of none":             ((2, 3, 4),  (1, 1, 4, 5, 7),  {}),
    "of heads":            ((2, 3, 4),  (4, 5, 7),        {}),
    "three batches":       ((2, 1, 2, 2), None,           {}),
}  # fmt: skip


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attended(device: str, name: str, *, of_bools: bool) -> list[torch.Tensor]:
    """The output and all gradients."""
    before, of_mask, options = CALLS[name]
    shapes = ((5, 8), (7, 8), (7, 6))
    leaves = [normal(*before, *s, seed=i).to(device) for i, s in enumerate(shapes)]
    mask = None if of_mask is None else normal(*of_mask, seed=4).to(device)
    if mask is not None and of_bools:
        mask = mask > -1
    elif mask is not None:
        leaves.append(mask)
    for x in leaves:
        x.requires_grad_()
    y = scaled_dot_product_attention(*leaves[:3], attn_mask=mask, **options)
    return [y, *torch.autograd.grad(y.square().sum(), leaves)]


@pytest.mark.parametrize("of_bools", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_the_cpu(name: str, of_bools: bool) -> None:
    found = attended(DEVICE, name, of_bools=of_bools)

    expected = attended("cpu", name, of_bools=of_bools)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of_mask", [None, False, True], ids=["plain", "mask", "trained mask"])
@pytest.mark.parametrize("heads_in_positions", [False, True])
@pytest.mark.parametrize("before", [(1,), (3,), (2, 3), (2, 2, 3)])
def test_the_output_lies_as_that_of_the_cpu(
    before: tuple[int, ...], heads_in_positions: bool, of_mask: bool | None
) -> None:
    """So that what views it there views it here."""

    def output(device: str) -> torch.Tensor:
        x = normal(*before, 5, 8, seed=0).to(device)
        if heads_in_positions:
            x = x.transpose(-3, -2).contiguous().transpose(-3, -2)
        mask = None if of_mask is None else torch.zeros(5, 5, device=device, requires_grad=of_mask)
        return scaled_dot_product_attention(x, x, x, mask)

    assert output(DEVICE).stride() == output("cpu").stride()


class Called(TorchDispatchMode):
    """The names of operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def is_one_operator(*shape: int) -> bool:
    """Whether a call is the operator that has rules of its own."""
    x = torch.zeros(shape, device=DEVICE)
    with Called() as called:
        scaled_dot_product_attention(x, x, x)
    return f"aten.{OPERATOR}.default" in called.names


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8)])
def test_it_is_one_operator(shape: tuple[int, ...]) -> None:
    assert is_one_operator(*shape)


@pytest.mark.parametrize(
    ("backend", "one"),
    [
        (SDPBackend.MATH, False),
        (SDPBackend.FLASH_ATTENTION, True),
        (SDPBackend.EFFICIENT_ATTENTION, True),
        (SDPBackend.CUDNN_ATTENTION, True),
        (SDPBackend.OVERRIDEABLE, True),
    ],
)
def test_only_plain_operators_are_plain_operators(backend: SDPBackend, one: bool) -> None:
    with sdpa_kernel(backend):
        assert is_one_operator(2, 3, 5, 8) == one
