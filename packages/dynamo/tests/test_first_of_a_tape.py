"""A compiled graph that is first on the tape takes its inputs at once, and what follows it knows them."""

from __future__ import annotations

from typing import Any

import torch

import torch_pjrt
from torch_pjrt.extend import counters, state


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.full((3,), 2.0).to("pjrt"), torch.full((3,), 5.0).to("pjrt")
    torch_pjrt.sync()
    return x, y


def test_operators_after_it_read_the_same_inputs(programs: Any) -> None:
    x, y = tensors()
    times = torch.compile(lambda x, y: x * y, backend="pjrt")
    times(x, y).cpu()
    programs.forget()

    product = times(x, y)
    rest = y - x + product

    assert len(state.tape.inputs) == 2
    assert rest.tolist() == [13.0] * 3
    assert programs.run == 1


def test_a_second_graph_reads_the_same_inputs() -> None:
    x, y = tensors()
    times = torch.compile(lambda x, y: x * y, backend="pjrt")
    minus = torch.compile(lambda y, x, z: y - x + z, backend="pjrt")
    minus(y, x, times(x, y)).cpu()

    rest = minus(y, x, times(x, y))

    assert len(state.tape.inputs) == 2
    assert rest.tolist() == [13.0] * 3


def test_what_it_writes_to_is_donated_step_after_step() -> None:
    x, y = tensors()

    @torch.compile(backend="pjrt")
    def step(y: torch.Tensor, x: torch.Tensor) -> None:
        x.add_(y)

    donated = []
    for _ in range(4):
        before = counters.donated
        step(y, x)
        torch_pjrt.sync()
        donated.append(counters.donated - before)

    assert x.tolist() == [22.0] * 3
    assert donated[1:] == [1, 1, 1]
