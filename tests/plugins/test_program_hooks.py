"""Functions of packages around compilations and launches of programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from torch_pjrt import extend
from torch_pjrt.errors import LostValue


def test_hooks_are_called_around_compilations_and_launches(compiled: Count):
    told: list[Any] = []
    hooks = extend.add_program_hooks(
        before_compile=lambda graph: told.append(("compile", len(graph.nodes))),
        after_compile=lambda program: told.append(("compiled", program.compilation.loaded)),
        before_launch=lambda program: told.append(("launch", type(program))),
        after_launch=lambda program: told.append(("launched", program.donated)),
    )
    try:
        for _ in range(2):
            (torch.ones(3, device="pjrt") + 1).tolist()
    finally:
        hooks.remove()
    (torch.ones(3, device="pjrt") * 2).tolist()

    assert told == [
        ("compile", 2),
        ("compiled", False),
        *([("launch", extend.Program), ("launched", ())] * 2),
    ]


def test_what_a_hook_raises_before_a_launch_keeps_the_program_from_running_and_its_values_are_lost():
    def refuse(program: Any) -> None:
        raise RuntimeError("not now")

    x = torch.ones(3, device="pjrt")
    torch_pjrt.sync()
    y = x + 5
    with extend.add_program_hooks(before_launch=refuse), pytest.raises(RuntimeError, match="now"):
        torch_pjrt.sync()

    assert x.tolist() == [1, 1, 1]
    with pytest.raises(LostValue, match="not now"):
        y.tolist()


def test_values_are_there_though_a_hook_raises_after_the_launch():
    def fail(program: Any) -> None:
        raise RuntimeError("too late")

    y = torch.ones(3, device="pjrt") + 5
    with extend.add_program_hooks(after_launch=fail), pytest.raises(RuntimeError, match="late"):
        torch_pjrt.sync()

    assert y.tolist() == [6, 6, 6]
