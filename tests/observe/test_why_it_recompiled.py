"""Each recompilation says what differs from the nearest known program, and at which line of the user's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from lines import at, here
from torch_pjrt.observe import lines
from torch_pjrt.observe.compilations import compilations, explained
from torch_pjrt.observe.difference import ADVICE, NEW, Difference
from torch_pjrt.settings import settings


@pytest.fixture(autouse=True)
def noted() -> Iterator[None]:
    torch.zeros((), device="pjrt")
    with lines.noted("tests"):
        yield


def why() -> Difference:
    """Why the last program was compiled."""
    difference = compilations()[-1].why
    assert difference is not None
    return difference


def test_first_program_needs_no_reason(compiled: Count) -> None:
    torch.ones(3, device="pjrt").mul(2).tolist()

    assert compiled() == 1
    assert compilations()[-1].why is None


def test_known_program_is_not_listed_again(compiled: Count) -> None:
    torch.ones(3, device="pjrt").mul(2).tolist()
    before = compilations()

    torch.ones(3, device="pjrt").mul(2).tolist()

    assert compiled() == 1
    assert compilations() == before


def test_shape_of_an_input_is_named_with_the_operator_that_gets_it(compiled: Count) -> None:
    weight = torch.ones(4, 2).to("pjrt")

    for n in (8, 8, 5):
        x = torch.ones(n, 4).to("pjrt")
        line = here(+1)
        y = x.mm(weight)
        y.relu().tolist()

    assert compiled() == 2
    assert why().kind == "shape"
    assert why().what == (
        "`aten.mm.default` got float32[5, 4] for `self`; it was float32[8, 4] (operator 0)"
    )
    assert "drop_last=True" in why().advice
    assert at(why().line) == line


def test_dtype_of_an_input_is_named(compiled: Count) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        line = here(+1)
        torch.ones(3, dtype=dtype).to("pjrt").exp().tolist()

    assert (why().kind, at(why().line)) == ("dtype", line)
    assert "got bfloat16[3] for `self`; it was float32[3]" in why().what


def test_argument_of_an_operator_is_named(compiled: Count) -> None:
    x = torch.ones(3, 3).to("pjrt")

    for dim in (0, 1):
        x.sum(dim).tolist()

    assert why().kind == "argument"
    assert "`aten.sum.dim_IntList` has `dim=[1]`; it was `[0]`" in why().what


def test_size_of_what_is_made_is_a_shape(compiled: Count) -> None:
    for n in (3, 4):
        torch.ones(n, device="pjrt").mul(2).tolist()

    assert why().kind == "shape"
    assert "`aten.ones.default` has `size=[4]`; it was `[3]`" in why().what


def test_offset_of_a_view_is_named(compiled: Count) -> None:
    x = torch.arange(6.0).to("pjrt")

    for i in (0, 1, 2):
        line = here(+1)
        (x.as_strided((2,), (2,), i) * 2).tolist()  # no slice, whose offset would be a number

    assert why().kind == "view"
    assert "starts at element 2 of its storage; it was 1" in why().what
    assert at(why().line) == line


def test_operator_that_python_chose_is_named(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")

    for turn in range(2):
        y = x * 2 + x
        line = here(+1)
        y = y.sin() if turn == 0 else y.cos()
        (y - x).relu().tolist()

    assert why().kind == "operator"
    assert why().what == "operator 2 is `aten.cos.default`; it was `aten.sin.default`"
    assert why().advice == ADVICE["operator"]
    assert at(why().line) == line


def test_longer_loop_is_named(compiled: Count) -> None:
    for n in (3, 5):
        x = torch.ones(3).to("pjrt")
        for _ in range(n):
            line = here(+1)
            x = x.exp()
        x.tolist()

    assert why().kind == "longer"
    assert why().what == "2 more operators at the end, from `aten.exp.default` on"
    assert at(why().line) == line


def test_earlier_sync_is_named(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")

    for turn in range(2):
        y = x * 2 + x
        if turn == 1:
            y.sum().item()
        (y - x).relu().tolist()

    last = [c for c in compilations()[-2:] if c.why is not None]
    assert {c.why.kind for c in last if c.why} <= {"operator", "shorter"}
    assert "`aten.sum.default`" in last[0].why.what  # type: ignore[union-attr]
    assert last[0].cause.startswith(".item() at ")


def test_program_that_is_like_no_other_is_called_new(compiled: Count) -> None:
    torch.ones(3).to("pjrt").exp().tolist()

    torch.ones(3).to("pjrt").sin().cos().tan().tolist()

    assert why().advice == NEW


def test_number_that_changes_is_named_with_its_operator(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")

    for n in (1.5, 2.5, 3.5):
        line = here(+1)
        (x.exp() * n).tolist()

    assert compiled() == 2
    assert why().kind == "number"
    assert why().what == "`aten.mul.Tensor` (operator 1) has the number 2.5; it was 1.5"
    assert at(why().line) == line


def test_tensor_that_is_still_held_is_named_by_the_operator_that_made_it(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")
    kept: list[torch.Tensor] = []

    for turn in range(2):
        line = here(+1)
        mean = x.exp().mean()
        y = x - mean
        if turn == 1:
            kept.append(mean)
        del mean
        y.tolist()

    assert compiled() == 2
    assert why().kind == "held"
    assert why().what == "the result of `aten.mean.default` (operator 1) is still held; it was not"
    assert at(why().line) == line


def test_tensor_that_is_not_held_any_more_is_named(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")

    for turn in range(2):
        mean = x.exp().mean()
        y = x - mean
        if turn == 1:
            del mean
        y.tolist()

    assert why().kind == "released"
    assert "the result of `aten.mean.default` (operator 1) is not held any more" in why().what


def test_old_value_that_is_held_and_cannot_be_donated_is_named(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")
    copy = torch.empty_like(x)

    for turn in range(
        12
    ):  # the first eight that are held are copied, for the program that there is
        if turn >= 3:
            copy.copy_(x)  # which shares the array, until one of them is written to
            torch_pjrt.sync()
        x.add_(1)
        torch_pjrt.sync()
        assert compiled() == (1 if turn < 11 else 2)

    assert why().kind == "donation"
    assert "the old value of the program's input 0, float32[3]" in why().what


def test_other_inputs_of_the_same_operators_are_named(compiled: Count) -> None:
    x, y = torch.ones(3).to("pjrt"), torch.zeros(3).to("pjrt")

    for a, b in ((x, y), (x, x)):
        (a + b).tolist()

    assert why().kind == "wiring"
    assert why().what.startswith("`aten.add.Tensor` (operator 0) reads the program's input 0")


def test_nearest_program_and_not_the_last_is_compared_with(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")
    (x.exp().sin() * 2).tolist()
    x.tanh().sum().tolist()

    (torch.ones(4).to("pjrt").exp().sin() * 2).tolist()

    assert why().kind == "shape"
    assert "`aten.exp.default`" in why().what


def test_line_that_was_not_noted_is_promised(compiled: Count) -> None:
    lines.stop_for("tests")
    for n in (3, 4):
        torch.ones(n, device="pjrt").mul(2).tolist()

    assert why().line is None
    assert "`TORCH_PJRT_LOG=recompile` notes the lines" in explained(why())


def test_line_is_known_from_the_program_that_was_compiled_before(compiled: Count) -> None:
    def step(n: int) -> None:
        torch.ones(n).to("pjrt").exp().sum().tolist()

    line = at_step(step)
    for _ in range(5):
        step(8)
    step(3)

    assert at(why().line) == line


def at_step(step: Callable[[int], None]) -> tuple[str, int]:
    return step.__code__.co_filename, step.__code__.co_firstlineno + 1


def test_operator_of_backward_is_at_the_line_of_its_forward(compiled: Count) -> None:
    for n in (2, 3):
        w = torch.ones(n, device="pjrt", requires_grad=True)
        torch_pjrt.sync()
        line = here(+1)
        loss = (w * w).sum()
        torch_pjrt.sync()
        loss.backward()
        w.grad.tolist()  # type: ignore[union-attr]

    assert at(why().line) == line
    assert why().line.backward  # type: ignore[union-attr]


def test_it_is_logged_when_asked_for(
    compiled: Count, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "log", {"recompile"})

    with caplog.at_level(logging.INFO, "torch_pjrt"):
        for n in (3, 4):
            torch.ones(n, device="pjrt").mul(2).tolist()

    [text] = [r.getMessage() for r in caplog.records]
    assert "`size=[4]`; it was `[3]`" in text
    assert "test_why_it_recompiled.py" in text
    assert "Advice: let few shapes come by" in text


def test_report_lists_it(compiled: Count) -> None:
    for n in (3, 4):
        torch.ones(n, device="pjrt").mul(2).tolist()

    report = torch_pjrt.report()

    last = report.as_dict()["recompilations"][-1]
    assert (last["kind"], last["operators"]) == ("shape", 2)
    assert last["line"][0].endswith("test_why_it_recompiled.py")
    assert "it was `[3]`" in str(report)
