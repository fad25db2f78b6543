"""A layer of experts trains in one program a step: which expert takes which token is read by nobody."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_pjrt
from sides import DEVICE, moved
from torch_pjrt.observe.counters import counters

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN = 12, 8, 16, 4, 2


class Experts(nn.Module):
    """Each token goes to the experts that its router likes best; tokens are sorted by expert."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(CHOSEN)
        order = chosen.flatten().argsort(stable=True)
        counts = F.one_hot(chosen.flatten(), EXPERTS).sum(0)
        offs = counts.cumsum(0).to(torch.int32)
        sorted_ = x[order // CHOSEN].to(self.gate_up.dtype)
        gate, up = F.grouped_mm(sorted_, self.gate_up.mT, offs=offs).chunk(2, -1)
        y = F.grouped_mm(F.silu(gate) * up, self.down.mT, offs=offs)
        y = y * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // CHOSEN, y.to(x.dtype))


def trained(device: str, dtype: torch.dtype, work: list[tuple[int, int]]) -> list[torch.Tensor]:
    """Losses of six steps on other tokens each; what each step compiled and read is added to `work`."""
    torch.manual_seed(0)
    model = Experts().to(dtype).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = torch.randn(6, 2, TOKENS, WIDTH).to(dtype)
    losses = []
    for x, y in batches:
        before = counters.programs_compiled, counters.downloads
        loss = F.mse_loss(model(moved(x, device)), moved(y, device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_pjrt.sync()
        work.append((counters.programs_compiled - before[0], counters.downloads - before[1]))
        losses.append(loss.detach())
    return [loss.cpu().float() for loss in losses]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_after_the_third_compile_and_read_nothing(dtype: torch.dtype) -> None:
    work: list[tuple[int, int]] = []
    fallbacks = counters.fallbacks.total()

    ours = trained(DEVICE, dtype, work)

    assert work[3:] == [(0, 0)] * 3
    assert sum(reads for _, reads in work) == 0
    assert counters.fallbacks.total() == fallbacks
    rounding: dict[str, Any] = {} if dtype == torch.float32 else {"rtol": 1.6e-2, "atol": 1e-2}
    for a, b in zip(ours, trained("cpu", dtype, []), strict=True):
        torch.testing.assert_close(a, b, **rounding)
