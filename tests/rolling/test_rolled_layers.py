"""Repeated layers give, as loops, what they give written out: values, gradients, random draws, buffers.

`TORCH_PJRT_TEST_ROLLED` says how many random models to try (20).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torch_pjrt
from fixture_types import Count
from torch_pjrt.compile.programs import forget_programs
from torch_pjrt.errors import NonFiniteValue
from torch_pjrt.observe.counters import counters
from torch_pjrt.testing.quick import quick_options

PROGRAMS = int(os.environ.get("TORCH_PJRT_TEST_ROLLED", "20"))
WIDTH = 8
STEPS = 3
TRIED = itertools.count(1)


@dataclass(frozen=True)
class Plan:
    """One random model of repeated layers.

    kind     what a layer does. skip: it reads what came before the last layer too.
    shared   every layer whose number it divides has the first layer's weights; 0 for none.
    last     the last layer is another one. repeats: steps between two syncs, gradients adding up.
    between  what is done with the weights from outside between two steps.
    """

    layers: int
    kind: str
    skip: bool
    shared: int
    dropout: float
    last: bool
    optimizer: str
    repeats: int
    between: str = "nothing"


PLANS = st.builds(
    Plan,
    layers=st.integers(3, 6),
    kind=st.sampled_from(["linear", "norm", "attention", "batch norm", "convolution"]),
    skip=st.booleans(),
    shared=st.sampled_from([0, 0, 2, 3, 1]),
    dropout=st.sampled_from([0.0, 0.3]),
    last=st.booleans(),
    optimizer=st.sampled_from(["SGD", "AdamW", "momentum", "none"]),
    repeats=st.integers(1, 3),
    between=st.sampled_from(["nothing", "read", "write", "load", "evaluate", "hold"]),
)


class Layer(nn.Module):
    def __init__(self, plan: Plan, width: int) -> None:
        super().__init__()
        self.kind = plan.kind
        self.dropout = plan.dropout
        self.linear = nn.Linear(WIDTH, width)
        self.back = nn.Linear(width, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if plan.kind == "batch norm" else nn.LayerNorm(WIDTH)
        self.convolution = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "batch norm":
            y = self.back(F.relu(self.linear(self.norm(x.flatten(0, 1))))).view(x.shape)
        elif self.kind == "convolution":
            y = F.relu(self.convolution(x))
        else:
            y = self.norm(x) if self.kind != "linear" else x
            y = self.linear(y)
            if self.kind == "attention":
                heads = y.unflatten(-1, (2, -1)).transpose(1, 2)
                y = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
            y = self.back(torch.tanh(y))
        return x + F.dropout(y, self.dropout)


class Model(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.skip = plan.skip
        layers = [Layer(plan, 16) for _ in range(plan.layers)]
        for i in range(plan.layers):
            if plan.shared and i % plan.shared == 0:
                layers[i] = layers[0]
        if plan.last:
            layers.append(Layer(plan, 12))
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = before = self.first(x)
        for layer in self.layers:
            x, before = layer(x) + (0.5 * before if self.skip else 0), x
        return x


def meddled(model: Model, how: str) -> list[Tensor]:
    """Does something with the weights of some layers; what it has seen, or holds on to."""
    some = model.layers[1:3]
    weights = [weight for layer in some for weight in layer.parameters()]
    with torch.no_grad():
        if how == "read":
            return [weight.cpu() for weight in weights]
        if how == "write":
            weights[0].mul_(1.5)
            weights[-1].data = weights[-1].data - 0.25
        elif how == "load":
            state = some.state_dict(prefix="layers.")
            model.load_state_dict({k: v.cpu() * 0.9 for k, v in state.items()}, strict=False)
        elif how == "evaluate":
            x = torch.ones(1, 4, WIDTH, dtype=torch.float64).to(weights[0].device)
            result = model.eval()(x)
            model.train()
            return [result]
        elif how == "hold":
            return [weight.detach() for weight in weights]
    return []


def trained(plan: Plan, device: str, mode: str) -> tuple[list[Tensor], int]:
    """Losses, what was seen between the steps, state and gradients; how many loops the programs had."""
    torch_pjrt.config.roll_layers = mode
    loops = counters.loops
    torch.manual_seed(0)
    model = Model(plan).double().to(device)  # so that rounding is far below any mistake
    optimizer: torch.optim.Optimizer | None = None
    if plan.optimizer == "AdamW":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
    elif plan.optimizer != "none":
        momentum = 0.9 if plan.optimizer == "momentum" else 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=momentum)
    generator = torch.Generator().manual_seed(1)
    losses: list[Tensor] = []
    for step in range(STEPS):
        if step:
            losses += meddled(model, plan.between)
        model.zero_grad()
        for _ in range(plan.repeats):
            x = torch.randn(2, 4, WIDTH, generator=generator).double().to(device)
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss.detach())
        if optimizer is not None:
            optimizer.step()
        torch_pjrt.sync()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    results = [t.cpu() for t in [*losses, *model.state_dict().values(), *gradients]]
    return results, counters.loops - loops


@pytest.fixture(autouse=True)
def _setting() -> Iterator[None]:
    before = torch_pjrt.config.roll_layers
    forget_programs()  # whether they have loops was settled when they were compiled
    yield
    torch_pjrt.config.roll_layers = before


@pytest.mark.slow
@hypothesis_settings(
    max_examples=PROGRAMS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(PLANS)
def test_rolled_and_unrolled_agree(plan: Plan) -> None:
    if next(TRIED) % 20 == 0:  # compiled code is many mappings of memory, which Linux bounds
        forget_programs()
    with torch_pjrt.compile_options(**quick_options()):
        with torch_pjrt.eager():  # one operator at a time: programs that most models share
            written_out, none = trained(plan, "pjrt", "off")
        rolled, _ = trained(plan, "pjrt", "on")

    assert none == 0
    torch.testing.assert_close(rolled, written_out, rtol=1e-10, atol=1e-11)


PLAIN = Plan(
    layers=5,
    kind="norm",
    skip=False,
    shared=0,
    dropout=0.0,
    last=False,
    optimizer="AdamW",
    repeats=1,
)


@pytest.mark.parametrize("kind", ["linear", "norm", "attention", "batch norm", "convolution"])
def test_forward_and_backward_of_repeated_layers_are_two_loops(kind: str) -> None:
    plan = replace(PLAIN, kind=kind, optimizer="none")

    _, loops = trained(plan, "pjrt", "on")

    assert loops == 2


def test_layer_that_reads_the_one_before_the_last_is_in_the_loop() -> None:
    _, loops = trained(replace(PLAIN, skip=True, optimizer="none"), "pjrt", "on")

    assert loops == 2


def test_another_last_layer_is_left_out_of_the_loop() -> None:
    _, loops = trained(replace(PLAIN, last=True, optimizer="none"), "pjrt", "on")

    assert loops == 2


def test_micro_batches_are_a_loop_of_layers_each() -> None:
    _, loops = trained(replace(PLAIN, repeats=3, optimizer="none"), "pjrt", "on")

    assert loops > 0


def test_draws_differ_from_layer_to_layer_as_without_loops() -> None:
    x = torch.ones(1000, device="pjrt")

    def drawn(mode: str) -> Tensor:
        torch_pjrt.config.roll_layers = mode
        torch.manual_seed(0)
        y = x
        masks = []
        for _ in range(6):
            mask = torch.rand_like(x) < 0.5
            y = torch.sin(y * mask + 1)
            masks.append(mask)
        torch_pjrt.sync()
        return torch.stack(masks).cpu()

    loops = counters.loops

    rolled = drawn("on")

    assert counters.loops > loops
    assert len({tuple(mask.tolist()) for mask in rolled}) == 6
    assert torch.equal(rolled, drawn("off"))


def test_numbers_of_the_calls_may_differ_from_layer_to_layer() -> None:
    x = torch.linspace(-1, 1, 8).to("pjrt")
    torch_pjrt.config.roll_layers = "on"
    loops = counters.loops

    def run(y: Tensor, factor: float) -> Tensor:
        for i in range(6):
            y = torch.tanh(y.mul(factor + i).add(0.1 * i)).clone() + 1
        return y.cpu()

    for factor in (0.5, 0.25, 0.125):  # from the second on they are inputs of the program
        torch.testing.assert_close(run(x, factor), run(x.cpu(), factor))
    assert counters.loops > loops


def test_unrolled_recurrent_network_is_a_loop() -> None:
    cell = nn.GRUCell(4, 8)
    steps = torch.randn(10, 3, 4)

    def run(device: str) -> tuple[Tensor, Tensor]:
        its = cell.to(device)
        state = torch.zeros(3, 8, device=device)
        for x in steps.to(device):
            state = its(x, state)
        its.zero_grad()
        state.sum().backward()
        assert its.weight_hh.grad is not None
        return state.detach().cpu(), its.weight_hh.grad.cpu()

    expected = run("cpu")
    torch_pjrt.config.roll_layers = "on"
    loops = counters.loops

    torch.testing.assert_close(run("pjrt"), expected)
    assert counters.loops > loops


def test_nothing_is_compiled_anew_in_later_steps(compiled: Count) -> None:
    torch_pjrt.config.roll_layers = "on"
    model = Model(PLAIN).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    counts = []

    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(2, 4, WIDTH).to("pjrt")).square().mean().backward()
        optimizer.step()
        counts.append(compiled())

    assert counters.loops > 0
    assert counts[3:] == [counts[3]] * 7


def test_by_default_deep_models_of_small_layers_have_loops_and_shallow_ones_have_not() -> None:
    deep = replace(PLAIN, layers=12, optimizer="none")

    _, of_deep = trained(deep, "pjrt", "auto")
    _, of_shallow = trained(PLAIN, "pjrt", "auto")

    assert of_deep == 2
    assert of_shallow == 0


def test_layers_of_wide_weights_have_no_loop_by_default() -> None:
    """An iteration would copy its weights out of their stack: that costs more than the loop saves."""
    torch_pjrt.config.roll_layers = "auto"
    layers = [nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0) for width in (16, 128)]
    models = [nn.TransformerEncoder(layer, 16, enable_nested_tensor=False) for layer in layers]

    narrow, wide = (
        torch_pjrt.explain(model.to("pjrt").train(), torch.ones(2, 1, width, device="pjrt"))
        for model, width in zip(models, (16, 128), strict=True)
    )

    assert [run.rolled for run in narrow.programs[-1].layers] == [True]
    [refused] = wide.programs[-1].layers
    assert re.match(
        r"an iteration reads 5\d\d,\d{3} bytes of weights; a loop pays up to 524,288", refused.what
    )


def test_explanation_says_what_is_a_loop_and_what_prevented_one() -> None:
    model = Model(PLAIN).to("pjrt")
    x = torch.ones(2, 4, WIDTH, device="pjrt")

    torch_pjrt.config.roll_layers = "on"
    [loop] = torch_pjrt.explain(model, x).programs[-1].layers
    torch_pjrt.config.roll_layers = "auto"
    deep = Model(replace(PLAIN, layers=11, kind="attention")).to("pjrt")
    explanation = torch_pjrt.explain(deep, x)
    [refused] = explanation.programs[-1].layers

    assert (loop.rolled, loop.trip_count) == (True, 5)
    assert (refused.rolled, refused.trip_count) == (False, 11)
    assert refused.what == "it has 11 iterations; a loop pays from 12 on"
    assert "Layers that repeat" in str(explanation)


def test_report_counts_the_loops() -> None:
    before = torch_pjrt.report().counts["loops"]

    trained(replace(PLAIN, optimizer="none"), "pjrt", "on")

    assert torch_pjrt.report().counts["loops"] == before + 2


def test_operator_that_makes_a_nan_in_a_loop_is_named() -> None:
    torch_pjrt.config.roll_layers = "on"
    x = torch.full((4,), 2.0, device="pjrt")

    with pytest.raises(NonFiniteValue, match=r"aten\.log"), torch_pjrt.check_nans():
        for _ in range(8):
            x = torch.log(x).mul(2).sub(1).add(1)
        x.cpu()


@pytest.mark.slow
def test_program_with_loops_is_found_on_disk(python: Callable[..., object], tmp_path: Path) -> None:
    script = """
import torch, torch_pjrt
x = torch.linspace(0, 1, 8).to("pjrt")
for _ in range(10):
    x = torch.sin(x).mul(2).add(1)
print(round(x.sum().item(), 4), torch_pjrt.report().counts["programs_loaded"])
"""
    cache = {"TORCH_PJRT_CACHE_DIR": str(tmp_path)}

    def run(mode: str) -> list[str]:
        done = python(script, TORCH_PJRT_ROLL_LAYERS=mode, **cache)
        return done.stdout.split()  # type: ignore[attr-defined]

    first, second, off = run("on"), run("on"), run("off")

    assert first[0] == second[0] == off[0]
    assert first[1] == "0"
    assert second[1] == "1"
    assert off[1] == "0"


@pytest.mark.slow
def test_captured_step_with_loops_learns_donates_and_replays_as_without() -> None:
    def learned(mode: str) -> tuple[list[float], int, int, int]:
        torch_pjrt.config.roll_layers = mode
        forget_programs()
        torch.manual_seed(0)
        model = Model(replace(PLAIN, layers=4, dropout=0.2)).to("pjrt")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3, capturable=True)

        def train(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        step = torch_pjrt.capture(train)
        before = counters.donated, counters.replays, counters.loops
        batches = torch.linspace(-1, 1, 8 * 2 * 4 * WIDTH).view(8, 2, 4, WIDTH)
        losses = [float(step(x.to("pjrt"))) for x in batches]
        after = counters.donated, counters.replays, counters.loops
        donated, replays, loops = (a - b for a, b in zip(after, before, strict=True))
        return losses, donated, replays, loops

    losses, *rest, loops = learned("on")
    expected, *expected_rest, none = learned("off")

    assert losses == pytest.approx(expected, rel=1e-5)
    assert rest == expected_rest
    assert (loops > 0, none) == (True, 0)
