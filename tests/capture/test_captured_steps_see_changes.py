"""What changes between two calls of a captured step is seen at the next call, or the docs list it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import changes_of_models
import changes_of_values
import torch_pjrt
from changes_of_steps import DOCUMENTED, ROWS

DOCS = Path(__file__).parents[2] / "docs" / "captured-steps.md"
TABLES = (changes_of_models, changes_of_values)  # their rows are in `ROWS` when they are imported
N_BEFORE = 4  # calls until the first replay


def host(x: Any) -> list[Any]:
    return [t.cpu() if isinstance(t, torch.Tensor) else t for t in pytree.tree_leaves(x)]


def inputs() -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(5)
    return [torch.randn(3, 3, generator=numbers).to("pjrt") for _ in range(N_BEFORE + 2)]


def results_of(
    step: Callable[..., Any], change: Callable[[], Any], before: Callable[[], Any] | None = None
) -> list[list[Any]]:
    """Of the calls after the change. What the change gives back, if it is a function, undoes it."""
    given = inputs()
    for x in given[:N_BEFORE]:
        step(x)
    if before is not None:
        before()
    undo = change()
    try:
        return [host(step(x)) for x in given[N_BEFORE:]]
    finally:
        if callable(undo):
            undo()


def run(name: str, make: Callable[[], Any]) -> tuple[list[Any], list[Any], Any]:
    """What the step gives and what the captured one gives after the change."""
    expected = results_of(*make())
    step, change = make()
    captured = torch_pjrt.capture(step)

    def is_replayed() -> None:
        assert captured.replays, f"{name}: no call was replayed before the change"

    return expected, results_of(captured, change, is_replayed), captured


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_change_is_seen_at_the_next_call(name: str):
    expected, saw, captured = run(name, ROWS[name])
    for x, y in zip(expected, saw, strict=True):
        assert len(x) == len(y)
        for a, b in zip(x, y, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
    assert len(captured.restarts) <= 1


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_change_that_is_documented_as_unseen_is_unseen(name: str):
    expected, saw, _ = run(name, DOCUMENTED[name])
    assert any(not torch.equal(a, b) for a, b in zip(expected[0], saw[0], strict=True))


def test_the_docs_list_what_is_not_seen():
    section = DOCS.read_text().partition("## What is not seen")[2].partition("\n## ")[0]
    listed = re.findall(r"^- (.*?)[;.]$", re.sub(r"\n  +", " ", section), re.MULTILINE)
    assert sorted(listed) == sorted(DOCUMENTED)
