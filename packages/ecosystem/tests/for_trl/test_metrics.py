"""Numbers that TRL logs are PyTorch's, also where it asks whether there are any; none is read before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from small import Costs
from torch_pjrt_ecosystem.for_trl.metrics import _compute_loss, _log

# As in TRL's `compute_loss`, line by line.
SOURCE = """
def compute_loss(total, n, x, mask, metrics):
    metrics["guarded"].append((total / n).item() if n > 0 else 0.0)
    found = (total / n).item() if n > 0 else 0.0
    metrics["later"].append(found)
    metrics["plain"].append(total.item())
    metrics["counted"].append(n.item())
    summed, count = total.item(), n.item()
    average = summed / count if count > 0 else 0.0
    metrics["divided"].append(average)
    kept = x[mask.bool()].sum()
    metrics["masked"].append(kept.item())

def branches(n):
    if n > 0:
        return "some"
    return "none"

def chosen(x, mask):
    return x[mask.bool()]
"""
NAMES = ("guarded", "later", "plain", "counted", "divided", "masked")


@pytest.fixture
def trl_like(tmp_path: Path) -> SimpleNamespace:
    """A module whose name is one of TRL's; lines are looked up in its file."""
    file = tmp_path / "fake_trainer.py"
    file.write_text(SOURCE)
    names: dict[str, Any] = {"__name__": "trl.trainer.fake_trainer"}
    exec(compile(SOURCE, str(file), "exec"), names)
    return SimpleNamespace(**{k: names[k] for k in ("compute_loss", "branches", "chosen")})


@pytest.mark.parametrize(
    ("total", "n"), [(3.0, 4), (0.0, 0), (3.0, 0), (float("nan"), 4), (float("inf"), 1)]
)
def test_numbers_are_pytorchs_and_nothing_is_read_before_the_log(
    trl_like: SimpleNamespace, total: float, n: int
) -> None:
    wanted: dict[str, list[Any]] = {name: [] for name in NAMES}
    x, mask = (
        torch.tensor([[1.0, float("inf")], [2.5, 4.0]]),
        torch.tensor([[1, 0], [1, int(n > 0)]]),
    )
    given = [torch.tensor(total), torch.tensor(n), x, mask]
    trl_like.compute_loss(*given, wanted)
    trainer = SimpleNamespace(_metrics={"train": {name: [] for name in NAMES}})
    there = [tensor.to("pjrt") + 0 for tensor in given]
    costs = Costs()

    costs.mark()
    _compute_loss(trl_like.compute_loss, *there, trainer._metrics["train"])
    costs.mark()
    _log(lambda *_: None, trainer)
    costs.mark()

    assert [cost[0] for cost in costs.steps] == [0, 2]  # floats, and integers
    found = trainer._metrics["train"]
    for name in NAMES:
        torch.testing.assert_close(found[name], wanted[name], equal_nan=True)
        assert type(found[name][0]) is type(wanted[name][0])


@pytest.mark.parametrize("n", [0, 4])
def test_a_branch_of_another_form_is_asked(trl_like: SimpleNamespace, n: int) -> None:
    found = _compute_loss(trl_like.branches, torch.tensor(n).to("pjrt"))

    assert found == ("some" if n else "none")


def test_a_mask_in_a_line_of_another_form_chooses(trl_like: SimpleNamespace) -> None:
    x, mask = torch.arange(4.0), torch.tensor([1, 0, 1, 1])

    found = _compute_loss(trl_like.chosen, x.to("pjrt"), mask.to("pjrt"))

    assert found.tolist() == [0.0, 2.0, 3.0]


def test_tensors_ask_as_before_behind_it(trl_like: SimpleNamespace) -> None:
    _compute_loss(trl_like.branches, torch.tensor(1).to("pjrt"))

    assert not {"item", "__bool__", "__truediv__", "__getitem__"} & set(vars(torch.Tensor))
