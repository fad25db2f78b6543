"""Options say how much forward keeps for backward; gradients are the same whatever it is."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

import torch_pjrt_dynamo
from torch_pjrt.extend import annotate, annotation_of, define_annotation, graph_of, state
from torch_pjrt.passes import Expand, MergeEqual, run_passes  # noqa: TID251

# What `torch.compile` takes: its annotation knows fewer kinds of values.
Options = dict[str, Any]


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = (x @ w).tanh()
    return x.sum()


def gradient(budget: float) -> tuple[torch.Tensor, int, int]:
    """The gradient, how many products the program computes, and how many bytes forward keeps."""
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 64).reshape(8, 8).to("pjrt")
    w = torch.linspace(1, -1, 64).reshape(8, 8).to("pjrt").requires_grad_()
    compiled = torch.compile(chain, backend="pjrt", options=Options(memory_budget=budget))
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    compiled(x, w).backward()
    assert w.grad is not None
    outputs = [w.grad.untyped_storage().buffer.value.number]  # type: ignore[attr-defined]
    graph = run_passes([Expand(), MergeEqual()], graph_of(state.tape, outputs))
    n_products = sum(str(n.op) == "aten.mm.default" for n in graph.nodes)
    return w.grad.cpu(), n_products, torch_pjrt_dynamo.partitions()[-1].kept_bytes


def test_a_small_budget_keeps_less_and_computes_again() -> None:
    whole, n_once, kept = gradient(1.0)
    again, n_again, kept_less = gradient(0.0)
    between, _, kept_some = gradient(0.5)

    assert n_again > n_once
    assert kept_less < kept
    assert kept_less <= kept_some <= kept
    torch.testing.assert_close(again, whole)
    torch.testing.assert_close(between, whole)


def test_what_is_kept_can_be_printed() -> None:
    gradient(1.0)

    text = str(torch_pjrt_dynamo.partitions()[-1])

    assert "keeps" in text and "float32[8, 8]" in text


@pytest.mark.parametrize("options", [{"memory_budget": 2}, {"no_such_option": 1}])
def test_what_is_no_option_is_refused(options: dict[str, Any]) -> None:
    compiled = torch.compile(chain, backend="pjrt", options=options)
    x = torch.ones(2, 2, device="pjrt")

    with pytest.raises(Exception, match="memory_budget"):
        compiled(x, x)


define_annotation("options_test.again", jax.lax.optimization_barrier, gradient=False)
define_annotation(
    "options_test.not_kept", lambda x: x + 0, gradient=False, again="options_test.again"
)


def test_backward_computes_again_what_an_annotation_says() -> None:
    def products(x: torch.Tensor, w: torch.Tensor, kind: str | None) -> torch.Tensor:
        for _ in range(2):
            y = x @ w
            x = (y if kind is None else annotate(y, kind)) @ w
        return x.square().sum()

    found = []
    for kind in (None, "options_test.not_kept"):
        torch._dynamo.reset()
        x = torch.linspace(-1, 1, 64).reshape(8, 8).to("pjrt")
        w = torch.linspace(1, -1, 64).reshape(8, 8).to("pjrt").requires_grad_()
        compiled = torch.compile(products, backend="pjrt", fullgraph=True)
        compiled(x, w, kind).backward()
        assert w.grad is not None
        outputs = [w.grad.untyped_storage().buffer.value.number]  # type: ignore[attr-defined]
        nodes = run_passes([Expand(), MergeEqual()], graph_of(state.tape, outputs)).nodes
        said = [a.kind for n in nodes if (a := annotation_of(n)) is not None]
        found.append((w.grad.cpu(), said.count("options_test.again")))

    (plain, _), (again, barriers) = found
    torch.testing.assert_close(again, plain)
    assert barriers == 2
