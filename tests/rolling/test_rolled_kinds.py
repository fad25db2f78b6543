"""Repetitions of many kinds become loops, and give what they give written out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_pjrt
from torch_pjrt.compile.programs import forget_programs
from torch_pjrt.observe.counters import counters


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    loss.backward()
    torch_pjrt.sync()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [loss.detach(), *grads, *model.buffers()]


def layers(make: Callable[[], nn.Module]) -> nn.ModuleList:
    return nn.ModuleList(make() for _ in range(5)).to("pjrt")


def experts() -> list[Tensor]:
    """The same function of the same input with other weights, weighted and added up."""
    model = layers(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
    x, shares = torch.randn(4, 8).to("pjrt"), torch.rand(4, 5).to("pjrt")
    mixed = torch.zeros(4, 8, device="pjrt")
    for i, expert in enumerate(model):
        mixed = mixed + expert(x) * shares[:, i : i + 1]
    return gradients(model, mixed.square().sum())


def checkpointed() -> list[Tensor]:
    model = layers(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3)))
    x = torch.randn(4, 8).to("pjrt").requires_grad_()
    for layer in model:
        x = checkpoint(layer, x, use_reentrant=False)  # type: ignore[assignment]
    return gradients(model, x.sum())


def encoder() -> list[Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 4).to("pjrt")
    return gradients(model, model(torch.randn(2, 6, 16).to("pjrt")).square().mean())


def residual_network() -> list[Tensor]:
    model = layers(
        lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())
    )
    x = torch.randn(2, 3, 6, 6).to("pjrt").requires_grad_()
    y: Tensor = x
    for layer in model:
        y = y + layer(y)
    loss = y.mean()
    return [*gradients(model, loss), *([x.grad] if x.grad is not None else [])]


def micro_batches() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to("pjrt")
    for batch in torch.randn(5, 4, 8).to("pjrt"):
        targets = torch.tensor([0, 1, 0, 1], device="pjrt")
        F.cross_entropy(model(batch), targets).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def mixed_precision() -> list[Tensor]:
    model = layers(lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()))
    x = torch.randn(4, 8).to("pjrt")
    with torch.autocast("pjrt", torch.bfloat16):
        for layer in model:
            x = x + layer(x)
    return gradients(model, x.float().mean())


def fused_optimizer() -> list[Tensor]:
    model = nn.Sequential(*layers(lambda: nn.Linear(8, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, eps=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 8, device="pjrt")).square().sum().backward()
        optimizer.step()
    state = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    return [*model.parameters(), *state]


def writes_in_place() -> list[Tensor]:
    x, b = torch.zeros(4, 4, device="pjrt"), torch.ones(3, device="pjrt")
    for i in range(8):
        x[i % 4, 1:] += b * i
        x = x * 1.1
        b.add_(1).mul_(0.5)
    return [x, b]


def seeded_in_the_middle() -> list[Tensor]:
    x = torch.ones(5, device="pjrt")
    for i in range(6):
        if i == 3:
            torch.manual_seed(9)
        x = torch.sin(x + torch.rand(5, device="pjrt")).mul(2).add(0.5 * i)
    return [x]


KINDS = (
    *(experts, checkpointed, encoder, residual_network, micro_batches),
    *(mixed_precision, fused_optimizer, writes_in_place, seeded_in_the_middle),
)


@pytest.fixture(autouse=True)
def _setting() -> Iterator[None]:
    before = torch_pjrt.config.roll_layers
    yield
    torch_pjrt.config.roll_layers = before


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_kind_is_rolled_and_agrees(kind: Callable[[], list[Tensor]]) -> None:
    def run(mode: str) -> tuple[list[Tensor], int]:
        torch_pjrt.config.roll_layers = mode
        forget_programs()
        torch.manual_seed(0)
        before = counters.loops
        results = [t.detach().cpu() for t in kind()]
        return results, counters.loops - before

    rolled, loops = run("on")
    written_out, none = run("off")

    assert (loops > 0, none) == (True, 0)
    torch.testing.assert_close(rolled, written_out, rtol=2e-5, atol=2e-6)
