"""`torch.amp.GradScaler("pjrt")` trains as on CPU, in one program a step and without reading anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt.observe.counters import counters

Optimizer = torch.optim.Optimizer
Make = Callable[[Iterable[nn.Parameter]], Optimizer]
optim = torch.optim

MAKERS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD, momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.1),
    "Adam": lambda p: optim.Adam(p, 0.01),
    "Adam, no lists": lambda p: optim.Adam(p, 0.01, foreach=False),
    "AdamW": lambda p: optim.AdamW(p, 0.01, amsgrad=True),
    "AdamW, fused": lambda p: optim.AdamW(p, 0.01, fused=True),
    "NAdam": lambda p: optim.NAdam(p, 0.01),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01),
    "Adadelta": optim.Adadelta,
}


class Trainer:
    """A small net, trained in float16; the inputs of the steps `infinite` are infinite."""

    def __init__(self, device: str, make: Make, infinite: Iterable[int] = ()) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        self.optimizer = make(self.model.parameters())
        self.scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=5)
        self.infinite = frozenset(infinite)
        self.n_steps = 0
        self.clip = False

    def step(self) -> None:
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(self.n_steps))
        if self.n_steps in self.infinite:
            x[0, 0] = torch.inf
        with torch.autocast(self.device, dtype=torch.float16):
            loss = self.model(x.to(self.device)).float().square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.n_steps += 1

    def run(self, n: int) -> Trainer:
        for _ in range(n):
            self.step()
        return self

    def parameters(self) -> list[torch.Tensor]:
        return [p.detach().cpu() for p in self.model.parameters()]


def assert_agree(ours: Trainer, theirs: Trainer) -> None:
    assert ours.scaler.state_dict() == theirs.scaler.state_dict()
    # Adam divides by the root of small float16 gradients, which are rounded in another order.
    torch.testing.assert_close(ours.parameters(), theirs.parameters(), rtol=1e-3, atol=2e-4)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("infinite", [(4, 11, 12, 20), (0, 1, 7)], ids=["later", "at first"])
def test_parameters_after_steps_with_infinite_gradients_are_those_of_the_cpu(
    name: str, infinite: tuple[int, ...]
) -> None:
    ours, theirs = (Trainer(d, MAKERS[name], infinite).run(30) for d in ("pjrt", "cpu"))

    assert_agree(ours, theirs)


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_is_one_known_program_that_reads_nothing_be_it_taken_or_not(name: str) -> None:
    trainer = Trainer("pjrt", MAKERS[name], infinite=(7,)).run(4)

    for _ in range(8):
        before = counters.programs_run, counters.programs_compiled, counters.downloads
        trainer.step()
        after = counters.programs_run, counters.programs_compiled, counters.downloads
        assert [b - a for a, b in zip(before, after, strict=True)] == [1, 0, 0]


def test_clipped_gradients_are_those_of_the_cpu() -> None:
    trainers = [Trainer(d, MAKERS["SGD, momentum"], (3, 9)) for d in ("pjrt", "cpu")]
    for t in trainers:
        t.clip = True

    assert_agree(trainers[0].run(12), trainers[1].run(12))


def test_an_optimizer_that_counts_on_the_host_steps_as_pytorch_does() -> None:
    class Counting(optim.SGD):
        n_taken = 0

        def step(self, closure: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            self.n_taken += 1
            for group in self.param_groups:
                group["lr"] = 0.1 / self.n_taken
            return super().step(closure)

    ours, theirs = (
        Trainer(d, lambda p: Counting(p, 0.1), (1, 2, 6)).run(9) for d in ("pjrt", "cpu")
    )

    assert ours.optimizer.n_taken == theirs.optimizer.n_taken == 6  # type: ignore[attr-defined]
    assert_agree(ours, theirs)


def test_hooks_of_the_user_are_called_for_steps_that_are_taken() -> None:
    called = []
    trainer = Trainer("pjrt", MAKERS["Adam"], (1, 3))
    trainer.optimizer.register_step_post_hook(lambda *_: called.append(1))

    trainer.run(6)

    assert len(called) == 4


def test_a_state_that_was_saved_goes_on_as_on_cpu() -> None:
    trainers = []
    for device in ("cpu", "pjrt"):
        t = Trainer(device, MAKERS["Adam"], (6, 9)).run(5)
        saved = (t.model.state_dict(), t.optimizer.state_dict(), t.scaler.state_dict())
        again = Trainer(device, MAKERS["Adam"], (6, 9))
        again.n_steps = 5
        for part, state in zip((again.model, again.optimizer, again.scaler), saved, strict=True):
            part.load_state_dict(state)
        trainers.append(again.run(8))

    assert_agree(trainers[1], trainers[0])
    assert trainers[1].optimizer.param_groups[0]["capturable"] is False


def test_a_parameter_that_joins_later_gets_its_state() -> None:
    def trained(device: str) -> Trainer:
        t = Trainer(device, MAKERS["Adam"], (5,))
        t.model[0].requires_grad_(False)
        t.run(4)
        t.model[0].requires_grad_(True)
        return t.run(6)

    assert_agree(trained("pjrt"), trained("cpu"))


def test_two_optimizers_share_a_scaler() -> None:
    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        a, b = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
        optimizers = [optim.SGD(a.parameters(), 0.1), optim.AdamW(b.parameters(), 0.1)]
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=3)
        for step in range(8):
            x = torch.full((2, 4), torch.inf if step == 4 else 0.5 * step).to(device)
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(a(x).sum() + b(x / 2).square().sum()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        return [p.detach().cpu() for m in (a, b) for p in m.parameters()]

    torch.testing.assert_close(trained("pjrt"), trained("cpu"), rtol=1e-4, atol=1e-5)


def test_parameter_that_is_a_view_with_gaps_is_scaled_and_may_skip() -> None:
    found = []
    for device in ("cpu", "pjrt"):
        whole = torch.ones(6, 8, device=device)
        p = nn.Parameter(whole[1:5, 2:6])
        optimizer = optim.SGD([p], 0.1, momentum=0.9)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
        for factor in (1.0, torch.inf, 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale((p.square() * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append((whole.cpu(), scaler.get_scale()))

    torch.testing.assert_close(found[1], found[0])
