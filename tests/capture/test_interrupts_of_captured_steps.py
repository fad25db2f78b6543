"""An interrupt at any moment of a call of a captured step: the next calls do what the step does.

A signal comes at each place of our code, and of the step's, that a handler may be called at. The call is a
replay, a check, one that is observed, one at other gradients, one after the world has changed. By default a
part of the places is tried. TORCH_PJRT_INTERRUPTS=1000 in the environment has all tried.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_pjrt
from intrusions import signalled
from torch_pjrt.interrupts.signals import waits
from torch_pjrt.replays import step as steps
from torch_pjrt.run import sync
from torch_pjrt.tensor.storage import transfer

ALL = int(os.environ.get("TORCH_PJRT_INTERRUPTS", "100")) >= 1000
N_PLACES = 4  # of each step and call, by default

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupted(BaseException):
    """What the handler raises."""


class Made:
    """A step, on tensors of a device."""

    def __init__(self, kind: str, device: str) -> None:
        self.kind = kind
        self.x = torch.full((3,), 2.0).to(device)
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]).to(device))
        self.state = torch.ones(3).to(device)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0625)
        self.scale = 1.0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "argument":
            x.mul_(0.5)
            return x + self.state * self.scale
        self.optimizer.zero_grad()
        loss = (self.weight * x * self.scale).square().mean()
        loss.backward()
        if self.kind == "sgd":
            self.optimizer.step()
        return loss.detach()

    def values(self) -> list[torch.Tensor]:
        return [t.detach().cpu() for t in (self.x, self.weight, self.state)]

    def put(self, values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for mine, value in zip((self.x, self.weight, self.state), values, strict=True):
                mine.copy_(value)


class Life:
    """A captured step, compared with the same on the CPU in each call."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.made = Made(kind, "pjrt")
        self.captured = torch_pjrt.capture(self.made.step)
        self.is_time_to_check = False

    @property
    def progress(self) -> Any:
        [progress] = self.captured._progress.values()
        return progress

    def expected(self) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor | None]:
        """What a call gives now, and leaves behind, and its gradient."""
        on_cpu = Made(self.kind, "cpu")
        on_cpu.put(self.made.values())
        on_cpu.scale = self.made.scale
        result = on_cpu.step(on_cpu.x)
        return result, on_cpu.values(), on_cpu.weight.grad

    def call(self) -> None:
        """Call it; raises where it does something else than on the CPU."""
        result, values, gradient = self.expected()
        given = self.captured(self.made.x)
        _assert_alike([given.cpu(), *self.made.values()], [result, *values])
        if gradient is not None:
            assert self.made.weight.grad is not None
            _assert_alike([self.made.weight.grad.cpu()], [gradient])

    def ready(self) -> None:
        """Have the next call replayed, and checked neither before."""
        for _ in range(8):
            self.made.put(Made(self.kind, "cpu").values())
            replays = self.captured.replays
            self.call()
            if self.captured.replays > replays:
                return
        raise AssertionError("it is not replayed any more")


def _assert_alike(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for x, y in zip(found, expected, strict=True):
        assert torch.allclose(x, y), f"{found}, expected {expected}"


def replay(life: Life) -> None: ...


def check(life: Life) -> None:
    life.is_time_to_check = True


def observation(life: Life) -> None:
    life.progress.start_anew()


def second_observation(life: Life) -> None:
    life.progress.start_anew()
    life.call()


def other_gradients(life: Life) -> None:
    life.made.weight.grad = torch.ones(3, device="pjrt")


def another_world(life: Life) -> None:
    life.made.scale = 3.0 - life.made.scale


def a_tensor_that_is_gone(life: Life) -> None:
    life.made.state = life.made.state.clone()
    life.made.weight.data = life.made.weight.data.clone()


CALLS = [
    replay,
    check,
    observation,
    second_observation,
    other_gradients,
    another_world,
    a_tensor_that_is_gone,
]


CASES = [
    *(("sgd", before) for before in CALLS),
    *(("gradients", before) for before in (CALLS if ALL else [replay, other_gradients])),
    *(("argument", before) for before in (CALLS if ALL else [check])),
]


@pytest.fixture
def raising() -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize(("kind", "before"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_the_next_calls_do_what_the_step_does(
    kind: str,
    before: Callable[[Life], None],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    life = Life(kind)
    monkeypatch.setattr(steps, "_is_time_to_check", lambda _: life.is_time_to_check)

    def attempt(at: int | None) -> int:
        """Interrupt a call at this place, and call again; how many places there were."""
        life.ready()
        before(life)
        was, (_, will_be, _) = life.made.values(), life.expected()
        with contextlib.suppress(Interrupted), signalled(at, signal.SIGALRM, (__file__,)) as places:
            life.captured(life.made.x)
        torch.set_grad_enabled(True)  # PyTorch's own `no_grad` may have been cut short
        life.is_time_to_check = False
        for now, x, y in zip(life.made.values(), was, will_be, strict=True):
            assert torch.allclose(now, x) or torch.allclose(now, y), f"{now}: neither {x} nor {y}"
        listening = (sync.listeners, transfer.on_upload, transfer.on_read)
        assert not any(listening) and not waits.n and gc.isenabled()
        life.call()
        life.ready()
        life.is_time_to_check = True
        life.call()
        life.is_time_to_check = False
        return len(places)

    life.ready()
    n = attempt(None)
    tried = range(0, n, 1 if ALL else max(n // N_PLACES, 1))
    faults = []
    for at in tried:
        try:
            attempt(at)
        except Exception as error:
            faults.append(f"{at}: {type(error).__name__}: {error}")
            life = Life(kind)
    record_property("moments of interrupts", len(tried))
    assert not faults, f"{len(faults)} of {len(tried)}:\n" + "\n".join(faults[:20])
