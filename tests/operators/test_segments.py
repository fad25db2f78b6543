"""`segment_reduce` takes every name of a fold that PyTorch takes, and refuses others in its words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sides import Case, difference, moved, on_both

FOLDS = ("sum", "prod", "mean", "max", "amax", "min", "amin")
LENGTHS, OFFSETS = torch.tensor([2, 0, 4]), torch.tensor([0, 2, 2, 6])
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "another fold": ("median", {"lengths": LENGTHS}),
    "no segments": ("sum", {}),
    "indices": ("sum", {"lengths": LENGTHS, "indices": LENGTHS}),
    "lengths that are no integers": ("sum", {"lengths": LENGTHS.float()}),
    "offsets that are no integers": ("sum", {"offsets": OFFSETS.double()}),
    "no such dim": ("sum", {"lengths": LENGTHS, "axis": 2}),
}


def reduced(device: str, fold: str, how: dict[str, Any]) -> dict[str, Any]:
    x = torch.linspace(-1, 2, 12).reshape(6, 2).to(device).requires_grad_()
    y = torch.segment_reduce(x, fold, **moved(how, device))
    y.backward(torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(device))
    return {"y": y, "gradient": x.grad}


def case(fold: str, how: dict[str, Any]) -> Case:
    return on_both(fold, lambda d: reduced(d, fold, how))


def test_every_fold_gives_what_it_gives_on_the_cpu() -> None:
    cases = [
        case(fold, {**how, "initial": initial})
        for fold in FOLDS
        for how in ({"lengths": LENGTHS}, {"offsets": OFFSETS.int()})
        for initial in (None, 0.5)
    ]

    assert not [c for c in cases if c.cpu.error is not None]
    assert not [line for c in cases if (line := difference(c))]


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_is_refused_at_the_call(name: str) -> None:
    refused = case(*REFUSED[name])

    assert refused.cpu.error is not None
    assert difference(refused) is None


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_segment_reduce_is_not_refused_for_made_up_lengths() -> None:
    lengths = torch.tensor([1, 3], device="pjrt")
    data = torch.arange(4.0, device="pjrt")
    assert torch.segment_reduce(data, "sum", lengths=lengths).tolist() == [0, 6]
