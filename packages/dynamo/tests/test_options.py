"""Options say how much forward keeps for backward; gradients are the same whatever it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_pjrt_dynamo
from torch_pjrt.extend import graph_of, state
from torch_pjrt.passes import Expand, MergeEqual, run_passes  # noqa: TID251


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = (x @ w).tanh()
    return x.sum()


def gradient(budget: float) -> tuple[torch.Tensor, int, int]:
    """The gradient, how many products the program computes, and how many bytes forward keeps."""
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 64).reshape(8, 8).to("pjrt")
    w = torch.linspace(1, -1, 64).reshape(8, 8).to("pjrt").requires_grad_()
    compiled = torch.compile(chain, backend="pjrt", options={"memory_budget": budget})
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
