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
from torch_pjrt.errors import UnsupportedError
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
    "class weights": {"weight": torch.linspace(0.1, 2, CLASSES)},
    "all": {"weight": torch.linspace(0.1, 2, CLASSES), "label_smoothing": 0.2},
    "each by itself": {"reduction": "none"},
    "each, weighted": {
        "reduction": "none", "weight": torch.linspace(0.1, 2, CLASSES), "label_smoothing": 0.1,
    },
}  # fmt: skip


def upstream(losses: torch.Tensor) -> torch.Tensor:
    """Another gradient for each."""
    return torch.linspace(3, 1, losses.numel(), device=losses.device).reshape(losses.shape)


def ours_of(form: dict[str, Any], device: str) -> dict[str, Any]:
    """The arguments by our names: PyTorch's `weight` is that of the classes."""
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in form.items()}
    return {"class_weight" if k == "weight" else k: v for k, v in given.items()}


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_loss_and_gradients_are_pytorchs(device: str) -> None:
    for form in FORMS.values():
        if "ignore_index" in form:
            hidden, weight, target, bias = inputs_of(device)
            target = target.clamp(0)
        else:
            hidden, weight, target, bias = inputs_of(device)
        ours = linear_cross_entropy(hidden, weight, target, bias, **ours_of(form, device))
        found = torch.autograd.grad((ours * upstream(ours)).sum(), (hidden, weight, bias))
        plain = [x.detach().cpu().double().requires_grad_() for x in (hidden, weight, bias)]
        wide: dict[str, Any] = {
            k: v.double() if isinstance(v, torch.Tensor) else v for k, v in form.items()
        }
        theirs = cross_entropy(linear(*plain), target.cpu(), **wide)
        expected = torch.autograd.grad((theirs * upstream(theirs)).sum(), plain)

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
    of_classes = jax.numpy.linspace(0.1, 2, CLASSES)

    def run(chunk: int) -> list[np.ndarray]:
        found = chunked.linear_cross_entropy(
            hidden, weight, bias, target.astype("int64"), of_classes, ignore_index=-100,
            label_smoothing=0.1,
            soft_cap=None, mean=True, wanted=(True, True, True), chunk=chunk,
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
    with pytest.raises(ValueError, match=r"'mean', 'sum' or 'none'"):
        linear_cross_entropy(hidden, weight, target, reduction="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"classes as integers"):
        linear_cross_entropy(hidden, weight, target.float())
    with pytest.raises(ValueError, match=r"no gradient of class_weight"):
        linear_cross_entropy(
            hidden, weight, target, class_weight=torch.ones(CLASSES).requires_grad_()
        )


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_tokens_and_tokens_that_are_all_ignored_give_what_pytorch_gives(
    device: str, reduction: Any
) -> None:
    for n in (0, 4):
        target = torch.full((n,), -100)
        leaves = [torch.ones(n, WIDTH), torch.ones(CLASSES, WIDTH)]
        theirs = [x.clone().requires_grad_() for x in leaves]
        expected = cross_entropy(linear(*theirs), target, reduction=reduction)
        given = [x.to(device).requires_grad_() for x in leaves]
        found = linear_cross_entropy(*given, target.to(device), reduction=reduction)  # type: ignore[misc]

        torch.testing.assert_close(found.cpu(), expected, equal_nan=True)
        gradients = (
            torch.autograd.grad(x.sum(), y) for x, y in ((found, given), (expected, theirs))
        )
        for ours, its in zip(*gradients, strict=True):
            torch.testing.assert_close(ours.cpu(), its)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_under_autocast_a_head_in_float32_is_cast_as_a_linear_layer_is(device: str) -> None:
    hidden, weight, target, bias = inputs_of(device)
    with torch.autocast(device, torch.bfloat16):
        ours = linear_cross_entropy(hidden.bfloat16(), weight, target, bias)
    found = torch.autograd.grad(ours, (hidden, weight, bias))

    narrow = [x.detach().cpu().bfloat16().double().requires_grad_() for x in (hidden, weight, bias)]
    theirs = cross_entropy(linear(*narrow), target.cpu())
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.cpu().double(), theirs, rtol=1e-5, atol=1e-5)
    for mine, its in zip(found, torch.autograd.grad(theirs, narrow), strict=True):
        assert mine.dtype == torch.float32
        assert (mine.cpu().double() - its).norm() < 2**-7 * its.norm()


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), ()])
def test_what_wants_no_gradient_takes_no_product(wanted: tuple[int, ...]) -> None:
    """Of a frozen head, say: the products of matrices in the program, and the gradients that are there."""
    given = [x.detach() for x in inputs_of("pjrt")]
    leaves = [given[i] for i in (0, 1, 3)]
    for i in wanted:
        leaves[i].requires_grad_()
    hidden, weight, bias = leaves
    loss = linear_cross_entropy(hidden, weight, given[2], bias)
    found = torch.autograd.grad(loss, [leaves[i] for i in wanted]) if wanted else ()

    text = torch_pjrt.to_stablehlo([loss, *found])

    again = 1 if wanted else 0
    assert text.count("dot_general") == 1 + again + (0 in wanted) + (1 in wanted)
    theirs = [x.detach().cpu().requires_grad_() for x in leaves]
    expected = cross_entropy(linear(*theirs), given[2].cpu())
    gradients = torch.autograd.grad(expected, [theirs[i] for i in wanted]) if wanted else ()
    for mine, its in zip((loss, *found), (expected, *gradients), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), its.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_derivative_is_refused_in_words(device: str, reduction: Any) -> None:
    hidden, weight, target, _ = inputs_of(device)
    loss = linear_cross_entropy(hidden, weight, target, reduction=reduction).sum()
    (first,) = torch.autograd.grad(loss, hidden, create_graph=True)

    with pytest.raises(UnsupportedError, match="`linear_cross_entropy` has no derivative"):
        torch.autograd.grad(first.square().sum(), hidden)
