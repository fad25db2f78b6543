"""Optimizers that somebody wrote: the program of their first step is that of all steps to come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

import torch_pjrt
from fixture_types import Count
from quickly import compiled_quickly  # noqa: F401  all tests here
from torch_pjrt.graph.tape import state
from torch_pjrt.observe.counters import counters
from torch_pjrt.run import fills


class OneByOne(Optimizer):
    """Goes over its parameters; subclasses say what is done with each."""

    def __init__(self, params: Iterable[Tensor], **options: Any) -> None:
        super().__init__(params, {"lr": 0.1, "betas": (0.9, 0.99), **options})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, self.state[p], group)

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


class Adam(OneByOne):
    """Counts in Python; the state is like the parameter, and like the gradient."""

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state.update(step=0, first=torch.zeros_like(p), second=torch.zeros_like(grad))
        state["step"] += 1
        (one, two), n = group["betas"], state["step"]
        state["first"].lerp_(grad, 1 - one)
        state["second"].mul_(two).addcmul_(grad, grad, value=1 - two)
        scale = (state["second"].sqrt() / (1 - two**n) ** 0.5).add_(1e-8)
        p.addcdiv_(state["first"], scale, value=-group["lr"] / (1 - one**n))


class Lion(OneByOne):
    """As it is often written: through `data`, with another dtype and layout asked for."""

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "average" not in state:
            state["average"] = torch.zeros_like(
                p.data, dtype=torch.float32, memory_format=torch.preserve_format
            )
        one, two = group["betas"]
        p.data.mul_(1 - group["lr"] * 0.01)
        p.data.add_(state["average"].clone().mul_(one).add(grad, alpha=1 - one).sign_(), alpha=-0.1)
        state["average"].mul_(two).add_(grad, alpha=1 - two)


class Scaled(OneByOne):
    """Its state begins as other numbers, made in every way that there is."""

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["rate"] = torch.full_like(grad, 0.5)
            state["sign"] = torch.ones_like(p)
            state["sum"] = p.new_zeros(p.shape)
            state["scale"] = torch.full(p.shape[-1:], 2.0, device=p.device)
            state["shift"] = grad.new_full(p.shape, 0.25) + torch.zeros(1, device=p.device)
            state["one"] = p.new_ones(()) * torch.ones((), device=p.device)
        state["sum"].mul_(0.5).add_(grad * state["one"]).mul_(state["scale"])
        state["rate"].mul_(torch.where(grad * state["sign"] > 0, 1.2, 0.5))
        state["sign"].copy_(grad.sign())
        p.sub_(state["rate"] * (state["sum"] + state["shift"]), alpha=group["lr"])


OWN = {"adam": Adam, "lion": Lion, "scaled": Scaled}


def leaves(device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator).to(device).requires_grad_()
        for shape in ((3, 4), (5,))
    ]


def loss_of(leaves: list[Tensor]) -> Tensor:
    return sum((x.sin() * (2 + i)).sum() for i, x in enumerate(leaves))  # type: ignore[return-value]


def trained(
    cls: type[OneByOne], device: str, after_step: Callable[[], object] = lambda: None
) -> list[Tensor]:
    """Parameters and state after four steps, at a rate that changes in each."""
    of = leaves(device)
    optimizer = cls(of)
    torch_pjrt.sync()
    for step in range(4):
        optimizer.param_groups[0].update(lr=0.1 / (1 + step))
        optimizer.zero_grad()
        loss_of(of).backward()
        optimizer.step()
        after_step()
    held = [s[k] for s in optimizer.state.values() for k in sorted(s)]
    return [x.detach().cpu() for x in (*of, *held) if isinstance(x, Tensor)]


@pytest.mark.parametrize("name", OWN)
def test_one_program_serves_all_steps(name: str, compiled: Count) -> None:
    before = compiled()
    after: list[int] = []
    # What is computed of tensors of one number is recorded, and not in the next step.
    n_first = 2 if name == "scaled" else 1

    found = trained(OWN[name], "pjrt", lambda: after.append(compiled() - before))

    expected = trained(OWN[name], "cpu")
    assert after[0] == 1
    assert after[1:] == [n_first] * 3
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


def test_state_that_is_large_is_filled_on_the_device(
    monkeypatch: pytest.MonkeyPatch, compiled: Count
) -> None:
    monkeypatch.setattr(fills, "_MOST_BYTES", 16)
    before = compiled()
    found = trained(Adam, "pjrt")

    assert compiled() - before == 2
    for x, y in zip(found, trained(Adam, "cpu"), strict=True):
        torch.testing.assert_close(x, y)


def test_no_gradient_is_computed_to_make_what_is_like_it() -> None:
    of = leaves("pjrt")
    optimizer = Adam(of)
    torch_pjrt.sync()
    loss_of(of).backward()
    before = counters.programs_run
    optimizer.step()

    assert counters.programs_run == before + 1


def test_zeros_outside_of_a_first_step_are_recorded() -> None:
    of = leaves("pjrt")
    optimizer = Adam(of)
    loss_of(of).backward()
    optimizer.step()
    before = len(state.tape.code)
    made = torch.zeros_like(of[0])

    assert len(state.tape.code) > before
    assert not made.any()


def test_step_that_fails_leaves_no_mark_behind_the_next() -> None:
    class Failing(Adam):
        fails = True

        def update(
            self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
        ) -> None:
            super().update(p, grad, state, group)
            if self.fails:
                raise KeyError("on purpose")

    of = leaves("pjrt")
    optimizer = Failing(of)
    loss_of(of).backward()
    with pytest.raises(KeyError):
        optimizer.step()
    torch_pjrt.sync()
    optimizer.fails = False
    optimizer.step()
    torch_pjrt.sync()

    assert not state.tape.steps
    assert not state.tape.makes_state
