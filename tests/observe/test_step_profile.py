"""`torch_pjrt.profile_step(step)` says which operators of the program a step's time on the device goes to."""

from __future__ import annotations

import torch
from torch import nn

import torch_pjrt
from fixture_types import Count
from lines import here
from torch_pjrt.diagnostics.instructions import Source, instructions_of, source_of
from torch_pjrt.diagnostics.step_profile import _own_times

TEXT = """
%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %tanh.1 = f32[4]{0} tanh(%p), metadata={op_name="jit(step)/Net/up/aten.tanh.default(model.py:5)/tanh"}
  ROOT %neg = f32[4]{0} negate(%tanh.1), metadata={op_name="jit(step)/Net/aten.neg.default(m.py:6)/neg"}
}

ENTRY %main (x: f32[4]) -> (f32[4]) {
  %x = f32[4]{0} parameter(0)
  %mixed = f32[4]{0} fusion(%x), calls=%fused, metadata={op_name="jit(step)/Net/aten.neg.default(m.py:6)/neg"}
  ROOT %tuple = (f32[4]{0}) tuple(%mixed)
}
"""


def test_expensive_operator_comes_first_with_its_line_and_its_module(compiled: Count) -> None:
    big, small = torch.rand(512, 512).to("pjrt"), torch.rand(4, 4).to("pjrt")
    numbers: list[int] = []

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        numbers.append(here(+1)[1])
        product = big @ big @ big @ big
        return product, torch.tanh(small)

    profile = torch_pjrt.profile_step(step, calls=2)

    first, ms, _ = profile.by_operator()[0]
    assert first.operator == "aten.mm.default"
    assert first.where == f"test_step_profile.py:{numbers[0]}"
    assert 0 < ms <= profile.ms
    assert "aten.mm.default" in str(profile)


def test_backward_and_modules_are_told(compiled: Count) -> None:
    model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128)).to("pjrt")
    x = torch.rand(64, 128).to("pjrt")

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        torch_pjrt.sync()
        return loss

    sources = [source for source, _, _ in torch_pjrt.profile_step(step, calls=2).by_operator()]

    products = [s for s in sources if s.operator == "aten.mm.default"]
    assert all(s.backward and s.module == "Sequential/*" for s in products)
    assert any(s.operator == "aten.addmm.default" and not s.backward for s in sources)


def test_programs_from_before_are_known_afterwards(compiled: Count) -> None:
    x = torch.rand(8, 8).to("pjrt")

    def step() -> float:
        return (x @ x).sum().item()

    step()
    torch_pjrt.profile_step(step, calls=1)
    before = compiled()
    step()

    assert compiled() == before


def test_fusion_names_all_operators_that_it_computes() -> None:
    fusion = instructions_of(TEXT)["mixed"]

    assert fusion.kind == "fusion"
    assert fusion.sources == [
        Source("aten.neg.default", "m.py:6", "Net"),
        Source("aten.tanh.default", "model.py:5", "Net/up"),
    ]


def test_name_without_a_line_is_what_xla_calls_it() -> None:
    assert source_of("jit(step)/while/body/add") == Source("add")
    assert source_of("jit(step)/while/body/A/b/backward/aten.mm.default(m.py:3)/dot_general") == (
        Source("aten.mm.default", "m.py:3", "A/b", backward=True)
    )


def test_what_a_loop_runs_is_where_it_was_recorded_and_not_where_the_loop_is() -> None:
    name = (
        "jit(step)/M/37/backward/pjrt.loop(m.py:3)/while/body/closed_call/"
        "M/36/backward/aten.mm.default(m.py:2)/dot_general"
    )

    assert source_of(name) == Source("aten.mm.default", "m.py:2", "M/36", backward=True)


def test_instruction_made_of_several_is_named_for_the_first() -> None:
    joined = "jit(step)/aten.div.Scalar(m.py:3)/div;jit(step)/aten.mul.Tensor(m.py:4)/mul"

    assert source_of(joined) == Source("aten.div.Scalar", "m.py:3")


def test_time_within_a_loop_is_that_of_what_the_loop_runs() -> None:
    events = [
        (0.0, 10.0, 1, "while"),
        (1.0, 4.0, 1, "dot"),
        (5.0, 4.0, 1, "dot"),
        (11.0, 1.0, 1, "add"),
    ]

    assert [*_own_times(events)] == [
        (1, "while", 2.0),
        (1, "dot", 4.0),
        (1, "dot", 4.0),
        (1, "add", 1.0),
    ]
