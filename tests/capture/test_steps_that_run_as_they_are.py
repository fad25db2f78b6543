"""Captured steps whose Python runs, since a replay would not do the same: what is said, and when."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_pjrt


def test_step_that_sees_something_else_in_each_call_runs_its_python_and_says_so() -> None:
    names: dict[str, Any] = {"n": 0, "x": torch.zeros(3).to("pjrt")}
    exec("def step(y):\n    x.add_(y)\n    return n is None", names)
    step = torch_pjrt.capture(names["step"])
    y = torch.ones(3).to("pjrt")

    with pytest.warns(UserWarning, match=r"(?s)never replayed.*`n` was") as warned:
        for names["n"] in range(200):
            step(y)

    assert len(warned) == 1
    assert step.replays == 0
    assert 4 <= len(step.restarts) <= 8
    assert names["x"].cpu().tolist() == [200.0] * 3
    for _ in range(600):  # and once nothing changes, it is replayed
        step(y)
    assert step.replays > 300


def test_step_that_is_not_required_to_be_captured_runs_as_it_is() -> None:
    calls: list[int] = []

    @torch_pjrt.capture(required=False)
    def step(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + len(calls)

    with pytest.warns(
        UserWarning, match=r"(?s)cannot be captured.*instead: it runs as it is"
    ) as said:
        results = [step(torch.zeros(2).to("pjrt"))[0].item() for _ in range(8)]

    assert results == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(said) == 1
    assert step.replays == 0


def test_what_is_said_of_many_and_long_changes_is_short() -> None:
    names: dict[str, Any] = {"seen": {"key": 0}, "n": 0, "x": torch.zeros(3).to("pjrt")}
    exec("def step(y):\n    x.add_(y)\n    return seen is None", names)
    step = torch_pjrt.capture(names["step"])
    y = torch.ones(3).to("pjrt")

    with pytest.warns(UserWarning, match=r"(?s)never replayed.*; \d+ more") as warned:
        for i in range(40):
            names["seen"] = {f"key{i}.{k}": "long" * 1000 for k in range(100)}
            step(y)

    assert len(str(warned[0].message)) < 2000
    assert max(map(len, step.restarts)) < 1500
