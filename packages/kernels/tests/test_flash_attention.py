"""`flash_attention` on the device gives what the plain definition gives on the CPU, in all its forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt_kernels import flash_attention

BATCH, HEADS, KEY_HEADS, LENGTH = 2, 4, 2, 40


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


TRIPLE = [normal(BATCH, n, LENGTH, 8, seed=i) for i, n in enumerate((HEADS, KEY_HEADS, KEY_HEADS))]
SEGMENTS = (torch.arange(LENGTH) // 16).expand(BATCH, LENGTH)

#   what is special      arguments
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal window": {"is_causal": True, "window": (8, None)},
    "ALiBi": {"is_causal": True, "slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    "soft cap": {"soft_cap": 3.0, "scale": 0.7},
    "segments": {"segments": SEGMENTS, "is_causal": True},
    "sinks": {"sinks": normal(HEADS, seed=4), "is_causal": True},
    "bias": {"bias": normal(1, HEADS, LENGTH, LENGTH, seed=5)},
    "mask": {"bias": normal(BATCH, 1, 1, LENGTH, seed=5) > -1},
}


def attended(device: str, form: dict[str, Any]) -> list[torch.Tensor]:
    """The output and all gradients."""
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in form.items()}
    leaves = [x.to(device).requires_grad_() for x in TRIPLE]
    for name in ("bias", "sinks"):
        if name in given and given[name].is_floating_point():
            leaves.append(given[name].requires_grad_())
    y = flash_attention(*leaves[:3], **given)
    return [y, *torch.autograd.grad(y.square().sum(), leaves)]


def test_values_and_gradients_are_those_of_the_cpu() -> None:
    on_device = {name: attended("pjrt", form) for name, form in FORMS.items()}

    for name, form in FORMS.items():
        for ours, theirs in zip(on_device[name], attended("cpu", form), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4, msg=name)


def test_it_is_plain_attention_where_pytorch_has_it() -> None:
    q, k, v = TRIPLE
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )

    torch.testing.assert_close(flash_attention(q, k, v, is_causal=True), expected)


def test_it_is_one_operator_of_a_compiled_function() -> None:
    @torch.compile(fullgraph=True)
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash_attention(q, k, v, is_causal=True, window=(8, None)) * 2

    found = attend(*(x.to("pjrt") for x in TRIPLE))

    expected = flash_attention(*TRIPLE, is_causal=True, window=(8, None)) * 2
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_dropped_weights_are_the_same_in_the_backward(device: str) -> None:
    q = torch.zeros(1, 2, 64, 4, device=device)
    v = torch.ones(1, 2, 64, 1, device=device).requires_grad_()
    y = flash_attention(q, q, v, dropout_p=0.5)
    rows = normal(1, 2, 64, 1, seed=1).to(device)

    (of_value,) = torch.autograd.grad(y, v, rows)

    torch.testing.assert_close((y * rows).sum().cpu(), of_value.sum().cpu(), rtol=1e-4, atol=1e-3)
    assert 0.3 < float((y.detach() / 2).mean()) < 0.7


def test_long_queries_make_no_array_of_all_scores() -> None:
    q = torch.zeros(1, 4, 1100, 8, device="pjrt")

    text = torch_pjrt.to_stablehlo([flash_attention(q, q, q, is_causal=True, soft_cap=5.0)])

    assert "1100x1100" not in text


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v = TRIPLE
    with pytest.raises(ValueError, match=r"keys and values that fit the query"):
        flash_attention(q, k[..., :4], v)
    with pytest.raises(ValueError, match=r"share key heads evenly"):
        flash_attention(q[:, :3], k, v)
    with pytest.raises(ValueError, match=r"slopes have shape \[3\]; expected \[4\]"):
        flash_attention(q, k, v, slopes=torch.zeros(3))
    with pytest.raises(ValueError, match=r"the bias has shape"):
        flash_attention(q, k, v, bias=torch.zeros(LENGTH, LENGTH))
    with pytest.raises(ValueError, match=r"of one dtype"):
        flash_attention(q, k, v.double())
