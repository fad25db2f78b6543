"""Numbers of an optimizer's step are inputs from its first program on: no schedule makes another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedulers

import torch_pjrt
from fixture_types import Count
from torch_pjrt.compile import programs
from torch_pjrt.compile.numbers import NumberPlan

# ASGD and Adafactor read values in each step, and Rprop has no number that a schedule changes.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "adadelta": ("Adadelta", {"rho": 0.8}),
    "adagrad": ("Adagrad", {"lr_decay": 0.01}),
    "adam": ("Adam", {"weight_decay": 0.01}),
    "adamax": ("Adamax", {}),
    "adamw": ("AdamW", {"amsgrad": True}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "rmsprop": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "sgd": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd, nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
}
ALL: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{name}, on lists": (cls, {**how, "foreach": True}) for name, (cls, how) in ROWS.items()},
    **{
        f"{name}, one by one": (cls, {**how, "foreach": False}) for name, (cls, how) in ROWS.items()
    },
    "adamw, fused": ("AdamW", {"fused": True}),
    "muon": ("Muon", {}),
}
N_STEPS = 4


def one_cycle(optimizer: Optimizer) -> Any:
    """The rate changes from the first step on, and so does what there is of momentum."""
    has_momentum = not {"momentum", "betas"}.isdisjoint(optimizer.defaults)
    return schedulers.OneCycleLR(
        optimizer, 0.1, total_steps=2 * N_STEPS, cycle_momentum=has_momentum
    )


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: schedulers.StepLR(optimizer, 2, 0.5),
    "one cycle": one_cycle,
}


def trained(
    cls: str,
    how: dict[str, Any],
    schedule: str,
    after_step: Callable[[], object] = lambda: None,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Parameters and state after some steps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(33, 17, generator=generator).to("pjrt", dtype).requires_grad_()
    y = torch.randn(5, 3, generator=generator).to("pjrt", dtype).requires_grad_()
    optimizer = getattr(torch.optim, cls)([x, y], **how)
    scheduler = SCHEDULES[schedule](optimizer)
    torch_pjrt.sync()
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        (x.sin().sum() + (y * y).mean()).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        after_step()
    state = [s[k] for s in optimizer.state.values() for k in sorted(s)]
    return [t.detach().cpu() for t in (x, y, *state) if isinstance(t, Tensor)]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ALL)
def test_one_program_serves_all_steps_of_a_schedule(
    name: str, schedule: str, compiled: Count
) -> None:
    before = compiled()
    after: list[int] = []

    trained(*ALL[name], schedule, lambda: after.append(compiled() - before))

    assert after == [1] * N_STEPS


@pytest.mark.slow("rows")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_results_are_those_of_constants_bit_by_bit(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trained(*ALL[name], "one cycle", dtype=dtype)
    # Then each step's program has the numbers of that step for constants.
    monkeypatch.setattr(programs, "likely_inputs", lambda tape: ([], []))
    none = np.array([], np.int64)
    monkeypatch.setattr(
        NumberPlan, "widened", lambda plan, tape, first: NumberPlan(tape, none, none)
    )
    expected = trained(*ALL[name], "one cycle", dtype=dtype)

    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
