"""`torch_pjrt.explain(fn)` says what one run of a function became."""

from __future__ import annotations

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from lines import at, here


def test_function_that_reads_nothing_is_one_program(compiled: Count) -> None:
    x, w = torch.ones(8, 16).to("pjrt"), torch.ones(16, 4).to("pjrt")

    explanation = torch_pjrt.explain(lambda a, b: torch.relu(a @ b), x, b=w)

    [ran] = explanation.programs
    assert torch.equal(explanation.result.cpu(), torch.full((8, 4), 16.0))
    assert (ran.program.n_operators, ran.program.n_inputs, ran.program.n_outputs) == (2, 2, 1)
    assert (ran.compiled, ran.runs) == (True, 1)
    assert explanation.breaks == []
    assert explanation.fallbacks == {}


def test_cost_is_what_xla_estimates(compiled: Count) -> None:
    x, w = torch.ones(8, 16).to("pjrt"), torch.ones(16, 4).to("pjrt")

    cost = torch_pjrt.explain(torch.mm, x, w).programs[0].cost

    assert cost.flops == 2 * 8 * 16 * 4
    assert cost.argument_bytes == 4 * (8 * 16 + 16 * 4)
    assert cost.output_bytes == 4 * 8 * 4
    assert cost.accessed_bytes is not None
    assert cost.accessed_bytes >= cost.argument_bytes + cost.output_bytes


def test_second_run_compiles_nothing(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")
    torch_pjrt.explain(torch.exp, x)

    [ran] = torch_pjrt.explain(torch.exp, x).programs

    assert (ran.compiled, ran.program.runs) == (False, 2)


def test_breaks_are_the_syncs_inside_with_their_lines(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")
    lines = []

    def step() -> torch.Tensor:
        y = x.exp()
        lines.append(here(+1))
        if y.sum() > 0:
            y = y + 1
        return y

    explanation = torch_pjrt.explain(step)

    [stop] = explanation.breaks
    assert (stop.cause, stop.syncs) == ("control flow on a tensor (bool)", 1)
    assert at(stop.line) == lines[0]
    assert [ran.program.n_operators for ran in explanation.programs] == [3, 1]


def test_what_was_pending_before_is_not_part_of_it(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt").exp().sin()

    [ran] = torch_pjrt.explain(torch.cos, x).programs

    assert ran.program.n_operators == 1


def test_loop_runs_one_program_many_times(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")

    def loop() -> None:
        for _ in range(5):
            x.exp().tolist()

    [ran] = torch_pjrt.explain(loop).programs

    assert ran.runs == 5


def test_transfers_are_those_of_the_run() -> None:
    transfers = torch_pjrt.explain(lambda: torch.ones(100).to("pjrt").cpu()).transfers

    assert transfers == {
        "uploads": 1,
        "uploaded_bytes": 400,
        "downloads": 1,
        "downloaded_bytes": 400,
    }


def test_fallbacks_are_those_of_the_run() -> None:
    library = torch.library.Library("torch_pjrt_explain", "DEF")
    library.define("plus_one(Tensor x) -> Tensor")
    library.impl("plus_one", lambda x: x + 1, "CPU")
    x = torch.ones(3, device="pjrt")

    with pytest.warns(UserWarning, match="runs on the CPU"):
        explanation = torch_pjrt.explain(torch.ops.torch_pjrt_explain.plus_one, x)

    assert explanation.fallbacks == {"torch_pjrt_explain.plus_one.default": 1}
    library._destroy()


def test_error_of_the_function_is_raised() -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        torch_pjrt.explain(fail)


def test_text_has_programs_reasons_and_breaks(compiled: Count) -> None:
    torch.ones(2).to("pjrt").exp().tolist()

    text = str(torch_pjrt.explain(lambda: torch.ones(3).to("pjrt").exp().tolist()))

    for part in ("flops", "float32[3]", "float32[2]", "test_explain.py", ".tolist()"):
        assert part in text


def test_notebook_gets_tables(compiled: Count) -> None:
    html = torch_pjrt.explain(torch.exp, torch.ones(2).to("pjrt"))._repr_html_()

    assert html.startswith("<table>")
    assert "<th>flops</th>" in html
