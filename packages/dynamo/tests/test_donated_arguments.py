"""A call takes the memory of the arguments that `donate` names; using them afterwards raises."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.client import client as running  # noqa: TID251
from torch_pjrt.errors import DonatedTensor
from torch_pjrt.extend import counters

# What `torch.compile` takes: its annotation knows fewer kinds of values.
Options = dict[str, Any]


def extended(cache: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: torch.cat([old[1:], x[None]]) for name, old in cache.items()}


def made() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    cache = {name: torch.arange(12.0).reshape(4, 3).to("pjrt") for name in ("keys", "values")}
    x = torch.ones(3).to("pjrt")
    torch_pjrt.sync()
    return cache, x


def compiled_extended() -> Callable[..., Any]:
    return torch.compile(extended, backend="pjrt", options=Options(donate=["cache"]))


def test_what_it_names_is_donated_and_results_are_right() -> None:
    step = compiled_extended()
    cache, x = made()

    donated = []
    for _ in range(3):
        before = counters.donated
        cache = step(cache, x)
        torch_pjrt.sync()
        donated.append(counters.donated - before)

    assert donated == [2, 2, 2]
    assert cache["keys"].tolist() == [[9.0, 10.0, 11.0]] + [[1.0] * 3] * 3


def test_calls_of_one_program_take_the_memory_once() -> None:
    step = compiled_extended()
    cache, x = made()
    first = cache["keys"].untyped_storage().buffer.value.array  # type: ignore[attr-defined]
    before = counters.donated

    result = step(step(cache, x), x)
    torch_pjrt.sync()

    assert result["keys"].tolist() == [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]] + [[1.0] * 3] * 2
    assert counters.donated == before + 1  # the test holds the array of the other
    assert not first.is_deleted()


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: x.cpu(),
        lambda x: x.add_(1),
        lambda x: torch.stack([x, x]),
        lambda x: x[1:].tolist(),
        torch.compile(torch.sin, backend="pjrt"),
        str,
    ],
)
def test_a_later_use_raises(use: Callable[[torch.Tensor], Any]) -> None:
    cache, x = made()
    compiled_extended()(cache, x)

    with pytest.raises(DonatedTensor, match=r"given to a compiled function(.|\n)*float32\[4, 3\]"):
        use(cache["keys"])


def test_other_arguments_stay() -> None:
    cache, x = made()

    compiled_extended()(cache, x)

    assert x.tolist() == [1.0] * 3


def test_what_is_written_to_or_has_a_view_that_is_returned_stays() -> None:
    @torch.compile(backend="pjrt", options=Options(donate=["a", "b"]))
    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b.add_(a)
        return a[1:], a * b

    a, b = torch.full((3,), 2.0).to("pjrt"), torch.ones(3).to("pjrt")

    view, product = step(a, b)

    assert view.tolist() == [2.0] * 2
    assert a.tolist() == [2.0] * 3
    assert b.tolist() == [3.0] * 3
    assert product.tolist() == [6.0] * 3


def test_nothing_happens_on_a_device_that_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, x = made()
    monkeypatch.setattr(running._running, "client", replace(running.client(), donates=False))

    compiled_extended()(cache, x)

    assert cache["keys"][0].tolist() == [0.0, 1.0, 2.0]


def test_fewer_bytes_are_alive_after_a_call() -> None:
    grown = {}
    for names in ([], ["cache"]):
        torch._dynamo.reset()
        step = torch.compile(extended, backend="pjrt", options=Options(donate=names))
        step(*made())  # compiles, and may drop what earlier compilations left
        cache, x = made()
        gc.collect()
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
        before = torch.pjrt.memory_allocated()  # type: ignore[attr-defined]
        result = step(cache, x)
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
        grown[len(names)] = torch.pjrt.memory_allocated() - before  # type: ignore[attr-defined]
        del result

    assert grown == {0: 2 * 48, 1: 0}
