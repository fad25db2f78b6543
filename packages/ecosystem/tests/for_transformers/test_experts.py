"""Models with layers of experts train as on the CPU: one program a step for whatever tokens, and no read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import text_models
from small import Costs

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


def trained(name: str, device: str, compiled: bool, costs: Costs) -> list[torch.Tensor]:
    """Losses of steps, each with tokens of its own, and so with other numbers of tokens for an expert."""
    torch._dynamo.reset()
    net = text_models.model(name).to(device)
    run = torch.compile(net, backend="pjrt") if compiled else net
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses: list[torch.Tensor] = []
    for step in range(4):
        ids = torch.randint(3, 64, (2, 12), generator=torch.Generator().manual_seed(step))
        given: Any = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        loss = run(**{key: x.to(device) for key, x in given.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        costs.mark()
        losses.append(loss.detach())
    return [loss.cpu() for loss in losses]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", text_models.EXPERTS)
def test_lazily_a_step_is_one_program_for_any_tokens(name: str) -> None:
    check(name, compiled=False)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", [*text_models.EXPERTS][:4])
def test_compiled_a_step_is_one_program_for_any_tokens(name: str) -> None:
    check(name, compiled=True)


def check(name: str, *, compiled: bool) -> None:
    costs = Costs()

    found = trained(name, "pjrt", compiled, costs)

    assert costs.steps[1:] == [(0, 1, 0)] * 2 and costs.fallbacks == 0
    for mine, wanted in zip(found, trained(name, "cpu", False, Costs()), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
