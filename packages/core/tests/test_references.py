"""References are counted alike on any thread, in frames that Dynamo looks at, and after it has failed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import torch_pjrt
from torch_pjrt.references import OF_A_LOCAL, are_held_once, counts, getrefcount, held_elsewhere


class Thing:
    def __init__(self) -> None:
        self.part = object()


def plainly(function: Callable[[], Any]) -> Any:
    return function()


def on_a_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def in_a_compiled_function(function: Callable[[], Any]) -> Any:
    """Behind a break of the graph, where Dynamo sees each frame that is called."""

    @torch.compile(backend="eager")
    def compiled(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        x = x + 1
        torch._dynamo.graph_break()
        return x, function()

    return compiled(torch.ones(2))[1]


def after_a_failed_compilation(function: Callable[[], Any]) -> Any:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError

    @torch.compile(backend=fails)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(BackendCompilerFailed):
        compiled(torch.ones(2))
    return function()


SITUATIONS = (plainly, on_a_thread, in_a_compiled_function, after_a_failed_compilation)


def counted() -> Any:
    """Three items: held by their list alone, by one more place, by two."""
    items = [Thing(), Thing(), Thing()]
    others = [items[1], items[2], items[2]]
    n_of_parts = counts([item.part for item in items])
    several = counts(items), n_of_parts, counts(map(_part, items))
    seen = held_elsewhere(items)
    kept = [item in seen for item in items]
    del seen
    once = are_held_once(items[:1]), are_held_once(items[1:]), are_held_once([])
    local = others[0]
    del items
    return several, kept, once, getrefcount(local) - OF_A_LOCAL


def _part(thing: Thing) -> object:
    return thing.part


@pytest.mark.parametrize("situation", SITUATIONS)
def test_counts_are_those_besides_ours(situation: Callable[[Callable[[], Any]], Any]):
    several, kept, once, local = situation(counted)

    assert several[:2] == ([0, 1, 2], [1, 1, 1])
    assert several[2] == [0, 0, 0]
    assert kept == [False, True, True]
    assert once == (True, False, True)
    assert local == 0


def test_one_module_counts_references():
    root = Path(torch_pjrt.__file__).parent

    counting = {p.name for p in root.rglob("*.py") if "sys.getrefcount" in p.read_text()}

    assert counting == {"references.py"}
