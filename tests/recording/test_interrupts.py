"""An interrupt at any moment leaves every tensor as it was before the step or after it, and training goes on.

TORCH_PJRT_INTERRUPTS=1000 in the environment makes so many.
"""

from __future__ import annotations

import inspect
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from torch import nn

import torch_pjrt
from intrusions import signalled
from torch_pjrt.interrupts.quiet import quiet

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]
DEVICE_TYPE: Any = vars(torch._C)["_autograd"].DeviceType.PrivateUse1

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
            ps: list[torch.Tensor] = list(self.model.parameters())
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


@pytest.mark.slow
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


class Learning:
    """A step with autograd and an optimizer. All gradients are equal, and so are all parameters."""

    def __init__(self, kind: str) -> None:
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to("pjrt")
        with torch.no_grad():
            for p in self.layers.parameters():
                p.zero_()
        of = torch.optim.Adam if kind == "adam" else torch.optim.SGD
        self.optimizer = of(self.layers.parameters(), lr=0.125)
        self.batches = [torch.ones(1, 4)] * 3
        if kind == "loader":
            self.batches = torch_pjrt.DeviceLoader(self.batches)
        compiled = kind.startswith("compiled")
        self.loss = torch.compile(self.sum_of_all, backend="pjrt") if compiled else self.sum_of_all
        self.makes_shapes = kind == "compiled anew"
        self.captured = torch_pjrt.capture(self.learn) if kind == "captured" else self.learn

    def sum_of_all(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x).sum() for layer in self.layers]).sum()

    def learn(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self) -> None:
        if self.makes_shapes:
            torch._dynamo.reset()
        for x in self.batches:
            self.captured(x.to("pjrt")).item()

    def value(self) -> float:
        """What all parameters are; raises where they differ or one is lost."""
        [value] = {v for p in self.layers.parameters() for v in p.detach().cpu().flatten().tolist()}
        return value


_LEARNING = ("sgd", "adam", "captured", "compiled", "compiled anew", "loader")


@pytest.mark.slow
@pytest.mark.parametrize("kind", _LEARNING)
def test_training_goes_on_after_interrupts(kind: str) -> None:
    moments = random.Random(kind)
    learning = Learning(kind)
    with interrupts():
        for _ in range(4):
            learning.run()
        seen = learning.value()
        for _ in range(max(2, N_INTERRUPTS // 25)):
            until_interrupted(learning.run, moments.uniform(0.0005, 0.02))

            value = learning.value()
            assert value <= seen < 0
            learning.run()
            assert learning.value() < value
            seen = value
    assert not [t for t in threading.enumerate() if t.name == "torch_pjrt.DeviceLoader"]


def test_interrupts_within_a_quiet_block_come_at_its_end() -> None:
    reached = []

    with interrupts():
        with pytest.raises(Interrupted), quiet():
            signal.raise_signal(signal.SIGALRM)
            reached.append(1)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGALRM)

    assert reached == [1]


def test_signals_that_come_together_in_a_quiet_block_are_each_handled_once() -> None:
    came: list[int] = []
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    before = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in numbers}
    try:
        with quiet():
            for _ in range(2):
                for number in numbers:
                    signal.raise_signal(number)
            assert came == []
        assert sorted(came) == sorted(numbers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_handler_that_raises_does_not_keep_others_from_theirs() -> None:
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    try:
        for first, second in (
            (signal.SIGUSR1, signal.SIGALRM),
            (signal.SIGALRM, signal.SIGUSR1),
        ):
            came.clear()
            with interrupts():
                with pytest.raises(Interrupted), quiet():
                    signal.raise_signal(first)
                    signal.raise_signal(second)
                assert came == [1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_handlers_are_seen_as_they_were_set() -> None:
    def mine(*_: Any) -> None: ...

    for handler in (mine, signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler):
        before = signal.signal(signal.SIGUSR1, handler)
        with quiet():
            assert signal.getsignal(signal.SIGUSR1) == handler
        assert signal.getsignal(signal.SIGUSR1) == handler
        assert signal.signal(signal.SIGUSR1, before) == handler
    # Where Python found it ignored, as a shell leaves it for what runs in the background, it is.
    assert signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)
    with pytest.raises(TypeError):
        signal.signal(signal.SIGUSR1, "no handler")  # type: ignore[arg-type]


def test_interrupt_as_pytorch_asks_the_device_guard_comes_after_it() -> None:
    """PyTorch looks `type_` up, has handlers called, calls what it found; an error there ends the process."""
    from torch_pjrt.device.guard import PjrtGuard

    guard = PjrtGuard()
    reached, kinds = [], []

    with interrupts(), pytest.raises(Interrupted):
        ask = guard.type_
        signal.raise_signal(signal.SIGALRM)
        reached.append(1)
        nested = guard.type_  # as a finalizer does that records, run by a collection within
        nested()
        reached.append(2)
        kinds.append(ask())
        reached.append(3)

    assert reached[:2] == [1, 2]
    assert all(kind is DEVICE_TYPE for kind in kinds)


def test_interrupts_of_recording_for_autograd_do_not_end_the_process() -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]).to("pjrt")
    x = torch.ones(2, 8, device="pjrt")
    model(x).sum().item()
    moments = random.Random("autograd")
    with interrupts():
        for _ in range(5 * N_INTERRUPTS):
            until_interrupted(lambda: model(x).sum(), moments.uniform(0.0002, 0.001))
    assert model(x).isfinite().all().item()


def test_an_interrupt_within_jax_s_switches_leaves_them_as_they_were() -> None:
    """Else all that the thread does later with JAX is in 64 bits."""
    model, x = nn.Linear(4, 4).to("pjrt"), torch.ones(2, 4, device="pjrt")
    model(x).sum().item()
    before = dict(jax.config.values)
    switches = inspect.getfile(type(jax.enable_x64(True)))

    def run(at: int | None) -> list[Any]:
        with signalled(at, signal.SIGALRM, (switches,)) as places:
            model(x).sum().item()
        return places

    run(None)
    places = [code.co_filename for code, _ in run(None)]
    tried = [at for at, file in enumerate(places) if file == switches or at % 20 == 0]
    n_raised, changed = 0, {}
    with interrupts():
        for at in tried:
            try:
                run(at)
            except Interrupted:
                n_raised += 1
            torch.set_grad_enabled(True)  # PyTorch's own `no_grad` may have been cut short
            torch_pjrt.sync()
            after = dict(jax.config.values)
            changed |= {k: at for k in after if after[k] != before[k]}
    assert n_raised > 20
    assert not changed


def test_device_type_is_told_whatever_a_handler_raises() -> None:
    from torch_pjrt.device.guard import PjrtGuard

    guard = PjrtGuard()
    n = 0
    with interrupts():
        for _ in range(50):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.2)
                while True:
                    assert guard.type_() is DEVICE_TYPE
            except Interrupted:
                n += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    assert n == 50


@pytest.mark.slow
@pytest.mark.parametrize("position", ["begun", "zeroed", "differentiated", "updated"])
@pytest.mark.parametrize("at", [1, 2, 3, 19])
def test_captured_step_goes_on_after_a_call_that_ended_halfway(
    at: int, position: str, tmp_path: Path
) -> None:
    """At any call: the recording's, and the check after 16 replays."""
    file = tmp_path / "interrupt"
    weight = torch.nn.Parameter(torch.ones(3, device="pjrt"))
    optimizer = torch.optim.SGD([weight], 0.01)

    def passing(here: str) -> None:
        if here == position and file.exists():
            raise KeyboardInterrupt

    def step() -> torch.Tensor:
        passing("begun")
        optimizer.zero_grad()
        passing("zeroed")
        loss = weight.square().sum()
        loss.backward()
        passing("differentiated")
        optimizer.step()
        passing("updated")
        return loss.detach()

    captured = torch_pjrt.capture(step)
    losses, interrupted = [], 0
    for call in range(45):
        if call == at:
            file.touch()
        try:
            losses.append(captured().item())
        except KeyboardInterrupt:
            interrupted += 1
            if position == "updated":
                losses.append(None)
            file.unlink()

    assert interrupted == 1
    expected = 3.0
    for loss in losses:
        assert loss is None or loss == pytest.approx(expected, rel=1e-4)
        expected *= 0.98**2


@pytest.mark.slow
def test_an_interrupt_while_recording_leaves_a_tape_that_is_right(
    python: Callable[..., Any],
) -> None:
    python(
        """
import random, signal, torch
class Stop(KeyboardInterrupt): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
for _ in range(100):
    a, w = torch.ones(4, device="pjrt"), torch.ones(2, 2, device="pjrt")
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-4, 2e-3))
        for _ in range(1000):
            b = (a * 3.0).add(a, alpha=2.0)
            w[0].mul_(1.0)
            values, indices = a.max(0)
    except Stop:
        pass
    p = a * 3.0
    assert (p - a).add(p, alpha=5.0).tolist() == [17.0] * 4
    assert w.tolist() == [[1.0, 1.0], [1.0, 1.0]]
"""
    )
