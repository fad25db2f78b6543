"""A training step is one program, whether backward and the optimizer are compiled with it or not."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt import config
from torch_pjrt.extend import counters

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """Normalization with statistics, attention, dropout: it keeps state and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(5)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(x))
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        x = x + nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(
            1, 2
        ).flatten(2)
        return self.head(self.dropout(x).mean(1))


def made(
    optimizer: Callable[..., torch.optim.Optimizer],
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net().to("pjrt")
    return model, optimizer(model.parameters(), lr=0.01)


def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 6, generator=g)
    return x.to(device), torch.tensor([0, 1, 2, 1]).to(device)


def plain(model: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """The step as it is."""

    def step(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def outside(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Only the module is compiled."""
    return plain(torch.compile(model, backend="pjrt"), optimizer)


def inside(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """All of the step is compiled."""
    return torch.compile(plain(model, optimizer), backend="pjrt")


def loss_inside(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Model and loss are compiled as one function."""
    loss_of = torch.compile(
        lambda x, targets: nn.functional.cross_entropy(model(x), targets), backend="pjrt"
    )

    def step(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.parametrize(
    ("way", "optimizer"),
    [(outside, torch.optim.SGD), (loss_inside, torch.optim.AdamW), (inside, torch.optim.AdamW)],
)
def test_a_step_is_one_program(
    way: Callable[..., Step], optimizer: type[torch.optim.Optimizer], programs: Any
) -> None:
    step = way(*made(optimizer))
    x, targets = batch("pjrt")
    for _ in range(4):
        step(x, targets)
    programs.forget()

    for _ in range(10):
        step(x, targets)

    assert (programs.run, programs.compiled) == (10, 0)


@pytest.mark.parametrize("way", [outside, inside])
def test_a_compiled_step_learns_what_the_plain_one_does(way: Callable[..., Step]) -> None:
    losses = []
    for each in (plain, way):
        step = each(*made(torch.optim.SGD))
        torch.manual_seed(1)  # dropout draws the same numbers
        losses.append([float(step(*batch("pjrt"))) for _ in range(5)])

    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)


def test_what_a_step_replaces_is_donated(programs: Any) -> None:
    model, optimizer = made(torch.optim.AdamW)
    step = inside(model, optimizer)
    x, targets = batch("pjrt")
    for _ in range(4):
        step(x, targets)
        gc.collect()  # compiling leaves cycles that hold the first parameters
    before = counters.donated

    step(x, targets)

    assert counters.donated - before >= 3 * len(list(model.parameters()))


@pytest.mark.slow
def test_a_compiled_optimizer_moves_nothing() -> None:
    step = inside(*made(torch.optim.AdamW))
    x, targets = batch("pjrt")
    for _ in range(2):
        step(x, targets)
    before = counters.uploads, counters.downloads

    step(x, targets)

    assert (counters.uploads, counters.downloads) == before


def test_a_call_is_one_node() -> None:
    model = torch.compile(Net().to("pjrt").eval(), backend="pjrt")
    x, _ = batch("pjrt")
    with torch.no_grad():
        model(x)
        torch_pjrt.sync()
        from torch_pjrt.extend import state

        result = model(x)

        assert len(state.tape.values) == 1
    assert result.shape == (4, 3)


def test_two_copies_of_a_layer_share_a_program(programs: Any) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4).to("pjrt")
    other = copy.deepcopy(layer)
    x = torch.randn(2, 4).to("pjrt")
    torch_pjrt.sync()
    first = torch.compile(lambda x: layer(x).relu(), backend="pjrt")
    second = torch.compile(lambda x: other(x).relu(), backend="pjrt")
    float(first(x).detach().sum())
    programs.forget()

    float(second(x).detach().sum())

    assert programs.compiled == 0


def test_a_call_with_many_results_is_one_operator_to_the_bound_of_the_tape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "tape_limit", 8)
    xs = [torch.full((2,), float(i)).to("pjrt") for i in range(6)]
    add = torch.compile(lambda xs: [x + 1 for x in xs], backend="pjrt")
    xs = add(xs)
    torch_pjrt.sync()
    runs = counters.programs_run

    for _ in range(6):
        xs = add(xs)

    assert counters.programs_run == runs, "36 values, 6 operators"
    assert [x.tolist() for x in xs] == [[i + 7.0] * 2 for i in range(6)]
