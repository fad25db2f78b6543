"""Compositions that are recorded at once: the same values, and by calling them where no template says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.graph.tape import state
from torch_pjrt.run.sync import live_values
from torch_pjrt.settings import settings
from torch_pjrt.tensor.recording.composed import Composed

Tensor = torch.Tensor


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, Y = numbers(4, 6), numbers(6, 3, seed=1)
#   the composition of a key and tensors, and these; whether a template is learned
COMPOSITIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor | None, ...], bool]] = {
    "a product": (lambda _, x, y: (x @ y).relu(), (X, Y), True),
    "of one tensor twice": (lambda _, x, y: x * 2 + y, (X, X), True),
    "of parts": (lambda _, x: x[1:, 2:5].t().contiguous() + 0.5, (X,), True),
    "of a view": (lambda _, x, y: (x @ y).sum(0), (X.t(), Y[1:5]), True),
    "two results and none": (lambda _, x, y: (x.sin(), None, y.cos()), (X, Y), True),
    "without a tensor": (lambda _, x, y: x + (1 if y is None else y), (X, None), True),
    "written to within": (lambda _, x: x.clone().mul_(3), (X,), True),
    "its own tensor": (lambda _, x: x, (X,), False),
    "a transposed result": (lambda _, x: x.t(), (X,), False),
    "several results of a node": (lambda _, x: x.max(1).values, (X,), False),
    "a constant of the host": (lambda _, x: x + torch.ones(6).to(x.device), (X,), False),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_values_and_strides_are_those_of_the_call(name: str) -> None:
    compose, given, has_template = COMPOSITIONS[name]
    composed = Composed(compose, "tests")
    expected = compose(None, *given)
    expected = expected if isinstance(expected, tuple) else (expected,)
    there = tuple(None if x is None else x.to("pjrt") for x in given)
    if name == "of a view":
        there = X.to("pjrt").t(), Y.to("pjrt")[1:5]

    found = [composed(there) for _ in range(3)]

    [template] = composed.templates.values()
    assert (template is not False) is has_template
    for results in found:
        for ours, theirs in zip(results, expected, strict=True):
            assert (ours is None) is (theirs is None)
            if ours is not None:
                assert ours.stride() == theirs.stride()
                torch.testing.assert_close(ours.cpu(), theirs)


def test_random_numbers_are_drawn_anew_each_time() -> None:
    composed = Composed(lambda _, x: x + torch.rand_like(x), "tests")
    x = torch.zeros(100, device="pjrt")

    first, second = composed((x,))[0], composed((x,))[0]

    assert first is not None and second is not None
    assert not torch.equal(first, second)


def test_errors_are_those_of_the_call() -> None:
    composed = Composed(lambda _, x, y: x @ y, "tests")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            composed((X.to("pjrt"), X.to("pjrt")))


def test_it_is_recorded_on_a_fresh_tape_where_the_last_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    composed = Composed(lambda _, x: x.sin().cos(), "tests")
    x = X.to("pjrt")
    composed((x,))
    torch_pjrt.sync()
    monkeypatch.setattr(settings, "tape_limit", 4)

    results = [composed((x,))[0] for _ in range(6)]

    assert state.tape.size <= 6
    for y in results:
        assert y is not None
        torch.testing.assert_close(y.cpu(), X.sin().cos())


def test_what_is_between_is_not_kept() -> None:
    composed = Composed(lambda _, x: x.sin().cos(), "tests")
    x = X.to("pjrt")
    composed((x,))
    torch_pjrt.sync()

    results = composed((x,))

    assert len(results) == 1
    assert state.tape.size == 2
    assert live_values(state.tape.values) == (1,)
