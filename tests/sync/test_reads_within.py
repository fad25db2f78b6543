"""A tensor that is read while this thread makes or runs the program of that tensor has its right value."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from intrusions import intruding
from torch_pjrt.compile import programs
from torch_pjrt.run import sync

Call = Callable[[], list[torch.Tensor]]


@pytest.mark.parametrize("phase", ["passes", "lowering", "compiling", "listening", "letting go"])
def test_read_within_a_sync_is_right(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.forget_programs()
    x = torch.arange(7.0, device="pjrt")
    p = torch.ones(7, device="pjrt")
    torch_pjrt.sync()
    p.add_(x)
    y = p * 3
    seen: list[Any] = []

    def read() -> None:
        if not seen:
            seen.append(None)
            seen.append(
                (y.tolist(), p.tolist(), (x.sum() + 1).item(), torch.ones(2).to("pjrt").tolist())
            )

    def before(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            read()
            return original(*args, **kwargs)

        return wrapped

    class Finalizer:
        def __del__(self) -> None:
            read()

    if phase == "passes":
        monkeypatch.setattr(programs, "run_passes", before(programs.run_passes))
    elif phase == "lowering":
        monkeypatch.setattr(programs, "function_of", before(programs.function_of))
    elif phase == "compiling":
        monkeypatch.setattr(programs, "with_stacks", before(programs.with_stacks))
    elif phase == "listening":
        monkeypatch.setattr(sync, "listeners", [lambda tape, program: read()])
    else:
        sync.state.tape.kept.append(Finalizer())

    torch_pjrt.sync()

    expected = [1.0 + i for i in range(7)]
    assert seen[1] == ([3 * e for e in expected], expected, 22.0, [1.0, 1.0])
    assert p.tolist() == expected
    p.add_(1)
    assert p.tolist() == [e + 1 for e in expected]


def replayed(x: torch.Tensor) -> Call:
    total = x.clone()

    @torch_pjrt.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        total.copy_(x).add_(1)
        return total * 2

    for _ in range(4):
        step(x)
    return lambda: [step(x)]


def uploaded(x: torch.Tensor) -> Call:
    given = [torch.arange(3.0), torch.arange(4)[::2], torch.ones(2, 1).expand(2, 3)]
    return lambda: [y.to("pjrt") for y in given]


def accounted(x: torch.Tensor) -> Call:
    pjrt: Any = torch.pjrt  # type: ignore[attr-defined]

    def call() -> list[torch.Tensor]:
        y = x + 1
        assert pjrt.memory_allocated() > 0 and "held by" in pjrt.memory_summary()
        return [y]

    return call


def reported(x: torch.Tensor) -> Call:
    def call() -> list[torch.Tensor]:
        y = x * 3
        assert str(torch_pjrt.report())
        return [y]

    return call


def explained(x: torch.Tensor) -> Call:
    def call() -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        assert str(torch_pjrt.explain(lambda: made.append(x * 5)))
        return made

    return call


PHASES = {f.__name__: f for f in (replayed, uploaded, accounted, reported, explained)}
PLACES = 10  # of each phase


@pytest.mark.slow("rows")
@pytest.mark.parametrize("who", ["the same thread", "another thread"])
@pytest.mark.parametrize("phase", PHASES)
def test_read_within_what_is_no_operator_is_right(phase: str, who: str) -> None:
    """By what runs in between on this thread; by a thread that starts in between, and ends when it can."""
    x, total = torch.arange(4.0, device="pjrt"), torch.zeros(2, device="pjrt")
    call = PHASES[phase](x)
    expected = [y.tolist() for y in call()]
    threads: list[threading.Thread] = []
    seen: list[list[float]] = []

    def read() -> None:
        total.add_(1)
        seen.append((total + x[:2] * 0).tolist())

    def intrude() -> None:
        if who == "the same thread":
            read()
        else:
            threads.append(threading.Thread(target=read))
            threads[-1].start()

    with intruding(None, intrude) as n:
        call()
    for at in range(0, n[0], -(-n[0] // PLACES)):
        with intruding(at, intrude):
            results = call()
        for thread in threads:
            thread.join()

        assert [y.tolist() for y in results] == expected, at
        assert not seen or seen[-1] == [float(len(seen))] * 2, at
    assert len(seen) >= 4
