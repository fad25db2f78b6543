"""Loops of Python over the positions of a sequence become loops of the program, forward and backward."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.compile.programs import forget_programs
from torch_pjrt.observe.counters import counters

Tensor = torch.Tensor
Recurrence = Callable[..., Tensor]
LENGTH = 14


def selective_scan(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """As Mamba's: the state is read by a product, and the results are stacked."""
    decay, new = torch.exp(-a.abs() * x[..., None]), x[..., None] * b
    state, results = torch.zeros_like(decay[:, 0]), []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + new[:, t]
        results.append(torch.matmul(state, x[:, t, :3].unsqueeze(-1))[..., 0])
    return torch.stack(results, dim=1)


def weighted_mean(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """As RWKV's: a running maximum, and results that are written in place."""
    out = torch.zeros_like(x)
    num = torch.zeros_like(x[:, 0])
    den, top = torch.zeros_like(num), torch.zeros_like(num) - 1e38
    keys, values = x * a.mean(), x + b.mean()
    for t in range(x.shape[1]):
        k, v = keys[:, t].float(), values[:, t]
        best = torch.maximum(top, k + 0.5)
        e1, e2 = torch.exp(top - best), torch.exp(k + 0.5 - best)
        out[:, t] = ((e1 * num + e2 * v) / (e1 * den + e2)).to(out.dtype)
        best = torch.maximum(top - 0.1, k)
        e1, e2 = torch.exp(top - 0.1 - best), torch.exp(k - best)
        num, den, top = e1 * num + e2 * v, e1 * den + e2, best
    return out


def gated_cell(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A cell whose weights are the same at each position, along the first dim."""
    h, results = torch.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        z = torch.sigmoid(x[t] @ a + h @ b)
        h = (1 - z) * h + z * torch.tanh(x[t] + z @ a)
        results.append(h)
    return torch.stack(results)


def from_the_end(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Positions that are counted from the end, and a position that is read twice."""
    state = torch.zeros_like(x[:, 0])
    for t in range(1, x.shape[1] + 1):
        state = torch.tanh(state * a.mean() + x[:, -t] * b.mean() + torch.cos(x[:, -t]))
    return state


def along_the_last_dim(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    x = x.transpose(1, 2) * a.mean()
    state, total = torch.zeros_like(x[..., 0]), b.sum()
    for t in range(x.shape[-1]):
        state = torch.sin(state + x[..., t]) * torch.exp(-x[..., t].abs())
        total = total + state.square().mean()
    return state + total


def also_read_as_a_whole(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A gradient that the positions share with other readers of the sequence."""
    state = x.mean(1)
    for t in range(x.shape[1]):
        state = torch.tanh(state @ a + x[:, t] @ b) + x[:, 0]
    return state + (x * x).sum(1)


KINDS: tuple[Recurrence, ...] = (
    *(selective_scan, weighted_mean, gated_cell),
    *(from_the_end, along_the_last_dim, also_read_as_a_whole),
)


@pytest.fixture(autouse=True)
def _setting() -> Iterator[None]:
    before = torch_pjrt.config.roll_layers
    yield
    torch_pjrt.config.roll_layers = before


def given(kind: Recurrence, device: str, length: int = LENGTH) -> list[Tensor]:
    torch.manual_seed(0)
    shape = (length, 2, 3) if kind is gated_cell else (2, length, 3)
    made = [torch.randn(shape), torch.randn(3, 3) / 2, torch.randn(3, 3) / 2]
    return [x.to(device).requires_grad_() for x in made]


def differentiated(kind: Recurrence, device: str, mode: str, length: int = LENGTH) -> Any:
    """The result and the gradients; how many loops their program has."""
    torch_pjrt.config.roll_layers = mode
    tensors = given(kind, device, length)
    if device == "pjrt":
        torch_pjrt.sync()
        forget_programs()
    before = counters.loops
    result = kind(*tensors)
    gradients = torch.autograd.grad(result.square().sum(), tensors)
    return [x.detach().cpu() for x in (result, *gradients)], counters.loops - before


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_forward_and_backward_are_loops_by_default_and_agree(kind: Recurrence) -> None:
    wanted, _ = differentiated(kind, "cpu", "off")

    rolled, loops = differentiated(kind, "pjrt", "auto")

    assert loops >= 2
    torch.testing.assert_close(rolled, wanted, rtol=1e-4, atol=1e-5)


def test_few_positions_are_written_out_by_default() -> None:
    _, loops = differentiated(selective_scan, "pjrt", "auto", 5)

    assert loops == 0


def test_the_number_of_operators_does_not_grow_with_the_sequence() -> None:
    def operators(length: int) -> int:
        torch_pjrt.config.roll_layers = "auto"
        tensors = given(selective_scan, "pjrt", length)
        result = selective_scan(*tensors)
        gradients = torch.autograd.grad(result.square().sum(), tensors)
        return torch_pjrt.to_stablehlo([*gradients]).count("stablehlo.dot_general")

    assert operators(24) == operators(12)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("seed", range(int(os.environ.get("TORCH_PJRT_TEST_RECURRENCES", "6"))))
def test_any_recurrence_agrees(seed: int) -> None:
    """Operators, dims and positions at random; the CPU is the oracle."""
    wanted, _ = differentiated(at_random(seed), "cpu", "off")

    rolled, loops = differentiated(at_random(seed), "pjrt", "on")

    assert loops >= 1
    torch.testing.assert_close(rolled, wanted, rtol=1e-4, atol=1e-5)


def at_random(seed: int) -> Recurrence:
    """A recurrence of a few operators on a state and on positions of some tensors."""
    draw = random.Random(seed)
    steps = [draw.randrange(6) for _ in range(draw.randint(2, 6))]
    back, written, keeps, ahead = (draw.random() < 0.4 for _ in range(4))

    def run(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y, out, kept = torch.sin(x) * a.mean(), torch.zeros_like(x), []
        state, slow = torch.zeros_like(x[:, 0]), b.sum()
        n = x.shape[1] - ahead
        for t in reversed(range(n)) if back else range(n):
            for step in steps:
                if step == 0:
                    state = state + x[:, t]
                elif step == 1:
                    state = torch.tanh(state @ a) * y[:, t]
                elif step == 2:
                    state = torch.maximum(state, x[:, t + ahead] * 0.3)
                elif step == 3:
                    state = state * torch.sigmoid(y[:, t, 1:2]) + slow * 0.01
                elif step == 4:
                    slow = slow * 0.9 + x[:, t].mean()
                else:
                    state = torch.where(x[:, t] > 0, state, state * 0.5 + b[0])
            if written:
                out[:, t] = state
            if keeps:
                kept.append(state)
        total = torch.tanh(state) + out.sum(1) + slow + a.sum()
        return torch.cat([total, *kept], dim=0)

    return run
