"""The loss behind a linear layer is PyTorch's, with its gradients, and all logits are never there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear

import torch_pjrt
from torch_pjrt_kernels import linear_cross_entropy
from torch_pjrt_kernels.cross_entropy import chunked

TOKENS, WIDTH, CLASSES = 37, 8, 51


def inputs_of(device: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Hidden states, weight, targets (every fifth is ignored) and bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = (TOKENS, WIDTH), (CLASSES, WIDTH), (CLASSES,)
    hidden, weight, bias = (
        torch.randn(s, generator=generator).to(device, dtype).requires_grad_() for s in shapes
    )
    target = torch.randint(CLASSES, (TOKENS,), generator=generator)
    target[::5] = -100
    return hidden, weight, target.to(device), bias


#   what is special      arguments of both
FORMS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "smoothing": {"label_smoothing": 0.1},
    "another index": {"ignore_index": 7},
}


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_loss_and_gradients_are_pytorchs(device: str) -> None:
    for form in FORMS.values():
        if "ignore_index" in form:
            hidden, weight, target, bias = inputs_of(device)
            target = target.clamp(0)
        else:
            hidden, weight, target, bias = inputs_of(device)
        ours = linear_cross_entropy(hidden, weight, target, bias, **form)
        found = torch.autograd.grad(ours * 3, (hidden, weight, bias))
        plain = [x.detach().cpu().double().requires_grad_() for x in (hidden, weight, bias)]
        theirs = cross_entropy(linear(*plain), target.cpu(), **form)
        expected = torch.autograd.grad(theirs * 3, plain)

        for mine, its in zip((ours, *found), (theirs, *expected), strict=True):
            torch.testing.assert_close(mine.cpu().double(), its, rtol=1e-5, atol=1e-5)


def test_soft_cap_bends_the_logits_first() -> None:
    hidden, weight, target, _ = inputs_of("pjrt")
    ours = linear_cross_entropy(hidden, weight, target, soft_cap=2.0)
    found = torch.autograd.grad(ours, (hidden, weight))

    plain = [x.detach().cpu().requires_grad_() for x in (hidden, weight)]
    theirs = cross_entropy(2 * torch.tanh(linear(*plain) / 2), target.cpu())

    for mine, its in zip(
        (ours, *found), (theirs, *torch.autograd.grad(theirs, plain)), strict=True
    ):
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-5, atol=1e-5)


@pytest.fixture
def wide() -> Iterator[None]:
    """Rules run with 64 bits."""
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("chunk", [17, 1, 20, 100])
@pytest.mark.slow("rows")
def test_chunks_of_any_size_give_the_same(chunk: int, wide: None) -> None:
    """In float64, where sums in another order differ by some 1e-15."""
    given = [jax.numpy.asarray(x.detach().double().numpy()) for x in inputs_of("cpu")]
    hidden, weight, target, bias = given

    def run(chunk: int) -> list[np.ndarray]:
        found = chunked.linear_cross_entropy(
            hidden, weight, bias, target.astype("int64"), ignore_index=-100, label_smoothing=0.1,
            soft_cap=None, mean=True, with_gradients=True, chunk=chunk,
        )  # fmt: skip
        return [np.array(x) for x in found]

    for ours, whole in zip(run(chunk), run(10**6), strict=True):
        np.testing.assert_allclose(ours, whole, rtol=1e-12, atol=1e-13)


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    hidden, weight, target, _ = inputs_of("pjrt", torch.bfloat16)
    ours = linear_cross_entropy(hidden, weight, target)
    of_hidden, of_weight = torch.autograd.grad(ours, (hidden, weight))

    plain = [x.detach().cpu().double().requires_grad_() for x in (hidden, weight)]
    theirs = cross_entropy(linear(*plain), target.cpu())
    expected = torch.autograd.grad(theirs, plain)

    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.cpu().double(), theirs, rtol=1e-5, atol=1e-5)
    for mine, its in zip((of_hidden, of_weight), expected, strict=True):
        assert mine.dtype == torch.bfloat16
        # The gradient of a logit is rounded, what is made of it once more: 2**-9 each.
        assert (mine.cpu().double() - its).norm() < 2**-8 * its.norm()


def test_compiled_without_gradients_and_in_batches() -> None:
    hidden, weight, target, _ = (x.detach() for x in inputs_of("pjrt"))
    compiled = torch.compile(linear_cross_entropy, fullgraph=True)

    found = compiled(hidden[:36].reshape(4, 9, WIDTH), weight, target[:36].reshape(4, 9))

    expected = cross_entropy(linear(hidden[:36], weight), target[:36])
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-5, atol=1e-5)


def test_program_has_no_array_of_all_logits() -> None:
    hidden = torch.zeros(4096, 4, device="pjrt").requires_grad_()
    weight = torch.zeros(60_000, 4, device="pjrt").requires_grad_()
    target = torch.zeros(4096, dtype=torch.int64, device="pjrt")
    loss = linear_cross_entropy(hidden, weight, target)

    text = torch_pjrt.to_stablehlo(list(torch.autograd.grad(loss, (hidden, weight))))

    chunks = {int(n) for n in re.findall(r"tensor<4096x(\d{3,})xf32>", text)}
    assert chunks == {chunked.classes_of_chunk(4096, 60_000)} == {4096}


def test_for_a_tpu_it_needs_a_tenth_of_the_memory_of_the_logits() -> None:
    """All logits of 4,096 tokens take 2.1 GB in float32."""
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")
    tokens, width, classes = 4096, 2048, 128_256
    hidden = torch.empty(tokens, width, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(classes, width, dtype=torch.bfloat16, device="meta")
    target = torch.empty(tokens, dtype=torch.int64, device="meta")

    def step(*given: torch.Tensor) -> Any:
        h, w = (x.detach().requires_grad_() for x in given[:2])
        return torch.autograd.grad(linear_cross_entropy(h, w, given[2]), (h, w))

    found = torch_pjrt.compile_for("v5e:2x2", step, hidden, weight, target)

    assert found.temporary_bytes < 0.1 * 4 * tokens * classes


def test_shapes_that_do_not_fit_are_refused() -> None:
    hidden, weight, target, _ = inputs_of("cpu")
    with pytest.raises(ValueError, match=r"\(classes, width\)"):
        linear_cross_entropy(hidden, weight[:, :3], target)
    with pytest.raises(ValueError, match=r"one floating dtype"):
        linear_cross_entropy(hidden, weight.double(), target)
    with pytest.raises(ValueError, match=r"'mean' or 'sum'"):
        linear_cross_entropy(hidden, weight, target, reduction="none")  # type: ignore[arg-type]
