"""One configuration of one optimizer on both sides: parameters and state after some steps and a reload."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from sides import DEVICE, Case, Outcome, Tolerance, outcome

N_STEPS = 2


def parameters(device: str, dtype: torch.dtype, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """Leaves of normal numbers, the same on both sides."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(tuple(s), generator=generator, dtype=dtype).to(device).requires_grad_()
        for s in shapes
    ]


def optimizer_case(
    name: str,
    cls: type[torch.optim.Optimizer],
    cpu_options: dict[str, Any],
    options: dict[str, Any],
    dtype: torch.dtype,
    shapes: Sequence[Sequence[int]],
    tolerance: Tolerance | None,
) -> Case:
    """`cls` made with `options` on the device, and with `cpu_options` on CPU."""
    return Case(
        name,
        _done("cpu", cls, cpu_options, dtype, shapes),
        _done(DEVICE, cls, options, dtype, shapes),
        tolerance,
    )


def _done(
    device: str,
    cls: type[torch.optim.Optimizer],
    options: dict[str, Any],
    dtype: torch.dtype,
    shapes: Sequence[Sequence[int]],
) -> Outcome:
    def work() -> dict[str, Any]:
        leaves = parameters(device, dtype, shapes)
        first = cls(leaves, **copy.deepcopy(options))
        for _ in range(N_STEPS):
            first.step(_closure(leaves, first))
        saved = copy.deepcopy(first.state_dict())
        second = cls(leaves, **copy.deepcopy(options))
        second.load_state_dict(copy.deepcopy(saved))
        second.step(_closure(leaves, second))
        return {"parameters": leaves, "state": saved["state"], "after": _state(second)}

    return outcome(work)


def _closure(leaves: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> Any:
    """A loss whose gradients differ from element to element and from step to step."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses = [(x * (2 + i)).sin().sum() + (x * x).sum() for i, x in enumerate(leaves)]
        loss = torch.stack([t.abs() if t.is_complex() else t for t in losses]).sum()
        loss.backward()
        return loss

    return closure


def _state(optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.state_dict()["state"]
