"""An interrupt at any moment leaves every tensor as it was before the step or after it, and training goes on.

TORCH_PJRT_INTERRUPTS=1000 in the environment makes so many, and interrupts recording for autograd too.
There PyTorch asks the device guard in code that must not throw, and calls handlers of signals: one that comes
within that microsecond still ends the process, so that the suite leaves it out.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.run.quiet import quiet

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]

_KINDS = ("lazy", "captured", "several launches", "new shapes", "rolled")
N_INTERRUPTS = int(os.environ.get("TORCH_PJRT_INTERRUPTS", "100"))


# Where the alarm comes in a finalizer or a callback, the error is ignored there.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupted(BaseException):
    """What the handler raises."""


@contextmanager
def interrupts() -> Iterator[None]:
    """While the block runs, an alarm raises `Interrupted`."""

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def until_interrupted(step: Callable[[], object], delay_s: float) -> None:
    """Repeat the step until an alarm comes. It comes again where the first was raised in a finalizer."""
    try:
        signal.setitimer(signal.ITIMER_REAL, delay_s, 1.0)
        while True:
            step()
    except Interrupted:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        torch.set_grad_enabled(True)  # PyTorch's own `no_grad` may have been cut short


class Training:
    """A step that adds one to each parameter, so that what it holds tells how many it has seen.

    Each is a multiple of one, whole: all its elements are equal. `losses` are read.
    """

    def __init__(self, kind: str, n_layers: int = 4) -> None:
        self.kind = kind
        self.model = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(n_layers)]).to(
            "pjrt"
        )
        with torch.no_grad():
            for p in self.model.parameters():
                p.zero_()
        self.x = torch.ones(4, 8, device="pjrt")
        self.n = 4
        captured = (
            torch_pjrt.capture(self.add_one) if kind in ("captured", "several launches") else None
        )
        self.step = captured or self.add_one

    def add_one(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            ps = list(self.model.parameters())
            torch._foreach_add_(ps, 1.0)
            if self.kind == "several launches":
                torch_pjrt.sync()
                torch._foreach_add_(ps, 1.0)
            return self.model(x).sum()

    def run(self) -> float:
        if self.kind == "new shapes":
            self.n += 1
            self.x = torch.ones(self.n, 8, device="pjrt")
        return self.step(self.x).item()

    def counts(self) -> set[float]:
        """By how much the parameters have grown; raises where one is lost or torn."""
        found = set()
        for p in self.model.parameters():
            [value] = set(p.detach().cpu().flatten().tolist())
            found.add(value)
        return found


@pytest.mark.parametrize("kind", _KINDS)
def test_parameters_are_whole_after_interrupts(kind: str) -> None:
    roll = torch_pjrt.config.roll_layers
    torch_pjrt.config.roll_layers = "on" if kind == "rolled" else roll
    moments = random.Random(f"interrupts {kind}")
    training = Training(kind, n_layers=8 if kind == "rolled" else 4)
    with interrupts():
        for _ in range(4):
            training.run()
        seen = training.counts()
        for _ in range(N_INTERRUPTS // len(_KINDS)):
            until_interrupted(training.run, moments.uniform(0.001, 0.02))

            counts = training.counts()
            assert len(counts) == 1, "some parameters are a step ahead of others"
            assert max(counts) >= max(seen)
            assert kind != "several launches" or max(counts) % 2 == 0
            training.run()
            assert max(training.counts()) > max(counts)
            seen = counts
    torch_pjrt.config.roll_layers = roll


@pytest.mark.skipif(
    "TORCH_PJRT_INTERRUPTS" not in os.environ, reason="may end the process, see above"
)
def test_training_with_adam_goes_on_after_interrupts() -> None:
    moments = random.Random("adam")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to("pjrt")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(16, 8, device="pjrt")

    def step() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    first = step()
    step()
    with interrupts():
        for _ in range(N_INTERRUPTS // 4):
            until_interrupted(step, moments.uniform(0.001, 0.02))
            assert all(p.isfinite().all().item() for p in model.parameters())
            last = step()
    assert last < first


def test_interrupts_within_a_quiet_block_come_at_its_end() -> None:
    reached = []

    with interrupts():
        with pytest.raises(Interrupted), quiet():
            signal.raise_signal(signal.SIGALRM)
            reached.append(1)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGALRM)

    assert reached == [1]


def test_device_type_is_told_whatever_a_handler_raises() -> None:
    from torch_pjrt.device.guard import PjrtGuard

    guard = PjrtGuard()
    n = 0
    with interrupts():
        for _ in range(50):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.2)
                while True:
                    assert guard.type_() is torch._C._autograd.DeviceType.PrivateUse1
            except Interrupted:
                n += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    assert n == 50
