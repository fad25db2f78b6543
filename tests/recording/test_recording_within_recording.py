"""What runs between two instructions of ours may record and read: handlers of signals, finalizers.

CPython runs handlers after a call, and finalizers wherever something is made that refers to others. So at
each such place of what records an operator another recording is put, and all of them give right values.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from intrusions import intruding
from torch_pjrt.observe import lines
from torch_pjrt_dynamo.compiled import CompiledGraph

# All places of each operation, 3,400 in all; else 40 of each.
_ALL = "TORCH_PJRT_INTERRUPTS" in os.environ


def on(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("pjrt")


def writes_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:3].mul_(y[1:3])
    return x


_graph = CompiledGraph(torch.fx.symbolic_trace(lambda x, y: (x * 2 + y, x - y)), "graph")

OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "new": torch.add,
    "numbers": lambda x, y: torch.add(x, y, alpha=3),
    "in place": lambda x, y: x.mul_(y),
    "scalar": lambda x, y: x * 2.5,
    "views": lambda x, y: x[::2] * y[1::2],
    "write to a view": writes_a_view,
    "list": lambda x, y: torch._foreach_mul([x, y], [y, y])[0],
    "out": lambda x, y: torch.sub(x, y, out=torch.empty_like(x)),
    "several": lambda x, y: x.sort(descending=True)[0] + y,
    "compiled": lambda x, y: _graph([x, y])[0],
    "compiled, on what is recorded": lambda x, y: _graph([x + 1, y])[0],
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("intruder", ["records", "reads"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_right_whatever_comes_between(name: str, intruder: str) -> None:
    operation = OPERATIONS[name]
    a, b = torch.arange(4.0), torch.arange(4.0) + 0.5
    expected = operation(a.clone(), b.clone()) if "compiled" not in name else a * 2 + b
    if "recorded" in name:
        expected += 2
    x, y, total = on(a.clone()), on(b), on(torch.zeros(4))
    operation(x.clone(), y)
    torch_pjrt.sync()
    seen: list[Any] = []

    def intrude() -> None:
        total.add_(1)
        if intruder == "reads":
            seen.append((x.detach() * 0 + total).tolist())

    def run(at: int | None) -> int:
        given = x.clone()
        torch_pjrt.sync()
        with intruding(at, intrude) as n:
            result = operation(given, y)
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)
        return n[0]

    n_places = run(None)
    assert n_places > 3
    step = 1 if _ALL else -(-n_places // 40)
    places = range(len(intruder) % step, n_places, step)
    for n_intrusions, at in enumerate(places, 1):
        run(at)

        assert total.tolist() == [n_intrusions] * 4
        assert not seen or seen[-1] == [n_intrusions] * 4
    assert x.tolist() == a.tolist() and y.tolist() == b.tolist()


@pytest.mark.parametrize("name", ["new", "in place", "views", "list", "compiled"])
def test_operation_whose_line_is_noted_is_right_whatever_comes_between(name: str) -> None:
    with lines.noted("a test"):
        test_operation_is_right_whatever_comes_between(name, "reads")


@pytest.mark.parametrize("intruder", ["records", "reads"])
def test_draws_differ_whatever_comes_between(intruder: str) -> None:
    x = torch.zeros(8, device="pjrt")
    x.clone().uniform_()
    torch_pjrt.sync()
    others: list[torch.Tensor] = []

    def intrude() -> None:
        others.append(torch.rand(8, device="pjrt"))
        if intruder == "reads":
            others[-1].tolist()

    n_places = 1
    at = 0
    while at < n_places:
        given = x.clone()
        torch_pjrt.sync()
        others.clear()
        with intruding(at, intrude) as n:
            given.uniform_()
        n_places = n[0]
        [other] = others or [torch.rand(8)]
        assert set(given.tolist()).isdisjoint(other.tolist())
        assert len(set(given.tolist())) == 8
        at += 1
    assert at > 10


def test_finalizers_that_collections_run_within_kernels_are_right() -> None:
    x, y, total = (torch.ones(4, device="pjrt") for _ in range(3))
    weights = torch.ones(4, device="pjrt", requires_grad=True)
    torch_pjrt.sync()
    n = [0, 0]

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            total.add_(1)
            (weights * 2).sum()  # asks the device guard
            n[0] += 1
            if n[0] % 10 == 0:
                n[1] += total.tolist() == [1.0 + n[0]] * 4

    before = gc.get_threshold()
    gc.set_threshold(1, 1 << 30, 1 << 30)
    try:
        for _ in range(25):
            Cycle()
            x.add_(y, alpha=1)
            Cycle()
            z = (x[1:] * weights[1:]).detach() + 1
    finally:
        gc.set_threshold(*before)
        gc.collect()

    assert n == [50, 5]
    assert x.tolist() == [26.0] * 4
    assert z.tolist() == [27.0] * 3
    assert total.tolist() == [51.0] * 4


def test_handlers_that_record_and_read_within_kernels_are_right() -> None:
    x, y, total = (torch.ones(4, device="pjrt") for _ in range(3))
    weights = torch.ones(4, device="pjrt", requires_grad=True)
    torch_pjrt.sync()
    n = [0, 0, 0]

    def handler(*_: Any) -> None:
        total.add_(1)
        n[0] += 1
        if n[0] % 5 == 0:
            n[1] += 1
            n[2] += total.tolist() == [1.0 + n[0]] * 4

    before = signal.signal(signal.SIGALRM, handler)
    n_steps = n_alarms = 0
    try:
        while n[0] < 50:
            if n_alarms == n[0]:
                n_alarms += 1
                signal.setitimer(signal.ITIMER_REAL, 0.0001 * (n_alarms % 7 + 1))
            x.add_(y, alpha=1)
            z = (x[1:] * weights[1:]).detach() + 1
            n_steps += 1
            if n_steps % 100 == 0:
                torch_pjrt.sync()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert n[1] == n[2] > 0
    assert x.tolist() == [1.0 + n_steps] * 4
    assert z.tolist() == [2.0 + n_steps] * 3
    assert total.tolist() == [1.0 + n[0]] * 4
