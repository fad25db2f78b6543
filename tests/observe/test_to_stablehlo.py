"""`to_stablehlo` tells the program that would compute some tensors, and changes nothing."""

from __future__ import annotations

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from torch_pjrt.graph.tape import state


def recorded() -> tuple[object, ...]:
    tape = state.tape
    return (tuple(tape.code), list(tape.values), list(tape.inputs), tape.ints, tape.floats)


def test_text_is_the_program_of_these_tensors_alone() -> None:
    x = torch.rand(3, 4).to("pjrt")
    y, other = x.exp(), x.cos()

    text = torch_pjrt.to_stablehlo(y)

    assert "stablehlo.exponential" in text
    assert "stablehlo.cosine" not in text
    assert "(tensor<3x4xf32> {jax.result_info" in text
    assert other.shape == (3, 4)


def test_several_tensors_are_results_in_their_order() -> None:
    x = torch.rand(3).to("pjrt")
    a, b = (x + 1).double(), x.long()

    text = torch_pjrt.to_stablehlo([b, a])

    main = next(line for line in text.splitlines() if "@main" in line)
    results = main.partition("->")[2]
    assert results.index("3xi64") < results.index("3xf64")


def test_nothing_is_run_compiled_or_recorded(compiled: Count) -> None:
    x = torch.rand(4, 4).to("pjrt")
    y = x + 1
    blank = torch.empty(3, device="pjrt")
    before = recorded()

    torch_pjrt.to_stablehlo([y, y[1:, ::2], y.t(), x, blank, torch.zeros(2, device="pjrt")[1:]])

    assert recorded()[0][: len(before[0])] == before[0]  # type: ignore[index]
    assert len(state.tape.inputs) == len(before[2])  # type: ignore[arg-type]
    assert compiled() == 0
    torch.testing.assert_close(y.cpu(), x.cpu() + 1)


def test_what_is_recorded_afterwards_is_as_if_it_had_not_been_asked(compiled: Count) -> None:
    x = torch.arange(12.0).view(3, 4).to("pjrt")
    results = []
    for ask in (False, True, True):
        y = x * 2
        fresh = torch.ones(4).to("pjrt")
        if ask:
            torch_pjrt.to_stablehlo([y[1], fresh, y.t()])
        y[0] += fresh
        fresh.mul_(3)
        results.append([(y + fresh).tolist(), fresh.tolist()])

    assert results[0] == results[1] == results[2]
    assert compiled() == 1


def test_random_operators_draw_nothing() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3, device="pjrt").tolist()
    torch.manual_seed(0)
    x = torch.rand(3, device="pjrt")

    text = torch_pjrt.to_stablehlo(x)

    assert "main" in text
    assert x.tolist() == expected


@pytest.mark.parametrize("wrong", [torch.ones(2), [torch.ones(2)], [1.0]])
def test_other_devices_are_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="takes tensors of the device pjrt, saw"):
        torch_pjrt.to_stablehlo(wrong)  # type: ignore[arg-type]


def test_lines_are_told_while_they_are_noted() -> None:
    x = torch.rand(3).to("pjrt")

    with torch_pjrt.source_lines():
        text = torch_pjrt.to_stablehlo(x.exp())
    plain = torch_pjrt.to_stablehlo(x.exp())

    assert "test_to_stablehlo.py" in text
    assert "test_to_stablehlo.py" not in plain
