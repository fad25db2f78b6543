"""PyTorch's `F.linear_cross_entropy` makes no array of all logits, and gives what the CPU gives."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import functional

import torch_pjrt
from torch_pjrt_kernels.cross_entropy import chunked

function = getattr(functional, "linear_cross_entropy", None)
pytestmark = pytest.mark.skipif(function is None, reason="this PyTorch has no such function")
TOKENS, WIDTH, CLASSES = 24, 8, 600
torch.zeros(1, device="pjrt")  # starts the device, and with it the package


@pytest.fixture(autouse=True)
def chunks_of_some_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 classes are a chunk already, as if tokens were many."""
    monkeypatch.setattr(chunked, "_LOGITS_BYTES", 1024)


def inputs_of(device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "input": (TOKENS, WIDTH),
        "linear_weight": (CLASSES, WIDTH),
        "linear_bias": (CLASSES,),
    }
    made: dict[str, Any] = {
        k: torch.randn(s, generator=generator).to(device).requires_grad_()
        for k, s in shapes.items()
    }
    target = torch.randint(CLASSES, (TOKENS,), generator=generator)
    target[::5] = -100
    return {**made, "target": target.to(device)}


def options() -> Any:
    return torch.nn.LinearCrossEntropyOptions()


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"linear_bias": None},
    "sum": {"reduction": "sum"},
    "each": {"reduction": "none"},
    "smoothing": {"label_smoothing": 0.1},
    "another index": {"ignore_index": 7},
    "class weights": {"weight": torch.linspace(0.1, 2, CLASSES), "reduction": "none"},
}


def losses(device: str, form: dict[str, Any]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss, and what it may be differentiated by."""
    given = {**inputs_of(device), **form}
    given = {k: v.to(device) if k == "weight" else v for k, v in given.items()}
    leaves = [x for x in given.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    if "ignore_index" in form:
        given["target"] = given["target"].clamp(0)
    return functional.linear_cross_entropy(**given), leaves


def makes_all_logits(text: str) -> bool:
    return re.search(rf"tensor<{TOKENS}x{CLASSES}x", text) is not None


@pytest.mark.parametrize("with_options", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_losses_and_gradients_are_those_of_the_cpu(name: str, with_options: bool) -> None:
    if with_options and "label_smoothing" in FORMS[name]:
        return  # PyTorch warns, and takes none
    ours, leaves = losses("pjrt", {**FORMS[name], "options": options() if with_options else None})
    found = torch.autograd.grad(ours.sum(), leaves)
    theirs, plain = losses("cpu", FORMS[name])
    expected = torch.autograd.grad(theirs.sum(), plain)

    assert not makes_all_logits(torch_pjrt.to_stablehlo([ours, *found]))
    assert ours.dtype == theirs.dtype
    for mine, its in zip((ours, *found), (theirs, *expected), strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-5)


def test_the_module_and_a_compiled_function_take_the_same_way() -> None:
    module = torch.nn.LinearCrossEntropyLoss(WIDTH, CLASSES, device="pjrt")
    given = inputs_of("pjrt")
    x, target = given["input"].detach(), given["target"]

    found = module(x, target)
    compiled = torch.compile(module, fullgraph=True)(x, target)

    assert not makes_all_logits(torch_pjrt.to_stablehlo([found, compiled]))
    torch.testing.assert_close(found.cpu(), compiled.cpu())
    expected = module.cpu()(x.cpu(), target.cpu())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {"input": torch.ones(WIDTH), "target": torch.tensor(3)},
        {"target": torch.full((TOKENS, CLASSES), 1 / CLASSES), "linear_bias": None},
    ],
)
def test_other_calls_are_pytorchs(changed: dict[str, Any]) -> None:
    found, expected = (
        functional.linear_cross_entropy(
            **{**inputs_of(d), **{k: v if v is None else v.to(d) for k, v in changed.items()}}
        )
        for d in ("pjrt", "cpu")
    )

    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_what_is_wrong_is_refused_in_pytorchs_words() -> None:
    given = inputs_of("pjrt")
    with pytest.raises(RuntimeError, match="in_features"):
        functional.linear_cross_entropy(
            given["input"], given["linear_weight"][:, :3], given["target"]
        )


def test_few_logits_are_made_at_once_and_have_second_derivatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    loss, leaves = losses("pjrt", {})
    (first,) = torch.autograd.grad(loss, leaves[:1], create_graph=True)

    (second,) = torch.autograd.grad(first.square().sum(), leaves[:1])

    assert bool(second.isfinite().all())
