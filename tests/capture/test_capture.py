"""A captured step does what the step itself does, call by call, and says what it cannot repeat."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_pjrt
from torch_pjrt.errors import CaptureError
from torch_pjrt.graph.tensor_spec import contiguous_spec
from torch_pjrt.replays.array_slots import Binding, Stale, Target
from torch_pjrt.tensor.storage.buffer import buffer_of

Batches = list[tuple[torch.Tensor, torch.Tensor]]
Step = Callable[..., Any]
Make = Callable[[], tuple[nn.Module, Any, Step]]


def batches(n: int, size: int = 5, seed: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    numbers = torch.Generator().manual_seed(seed)
    for _ in range(n):
        x = torch.randn(size, 8, generator=numbers)
        yield x.to("pjrt"), torch.randn(size, 2, generator=numbers).to("pjrt")


def made(kind: str = "adamw", *, dropout: float = 0.0) -> tuple[nn.Sequential, Any, Step]:
    """A model, its optimizer and a training step that returns the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.ReLU(), nn.Linear(16, 2)
    ).to("pjrt")
    optimizer = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True),
    }[kind](model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def states(model: nn.Module) -> list[torch.Tensor]:
    return [x.cpu() for x in model.state_dict().values()]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_training_is_the_same_to_the_bit(kind: str, dropout: float):
    model, _, step = made(kind, dropout=dropout)
    torch.manual_seed(7)
    expected = [step(x, y).item() for x, y in batches(40)]
    other, _, same = made(kind, dropout=dropout)
    captured = torch_pjrt.capture(same)
    torch.manual_seed(7)
    assert [captured(x, y).item() for x, y in batches(40)] == expected
    assert captured.replays > 30
    assert captured.restarts == []
    for x, y in zip(states(model), states(other), strict=True):
        assert torch.equal(x, y)


def test_replays_record_nothing_and_compile_nothing(compiled: Callable[[], int]):
    _, _, step = made()
    captured = torch_pjrt.capture(step)
    for x, y in batches(10):
        captured(x, y)
    before, report = compiled(), torch_pjrt.report().as_dict()
    for x, y in batches(4):
        captured(x, y)
    after = torch_pjrt.report().as_dict()
    assert compiled() == before
    assert after["operators"] == report["operators"]
    assert after["replays"] - report["replays"] == 4
    assert after["programs_run"] - report["programs_run"] == 4


def test_parameters_are_donated_in_replays():
    _, _, step = made()
    captured = torch_pjrt.capture(step)
    data = list(batches(8))
    for x, y in data[:6]:
        captured(x, y)
    before = torch_pjrt.report().as_dict()
    captured(*data[6])
    after = torch_pjrt.report().as_dict()
    assert after["replays"] == before["replays"] + 1
    assert after["donated"] - before["donated"] > 8  # parameters, moments, running statistics


def test_what_the_user_holds_of_a_parameter_survives_a_replay():
    model, _, step = made()
    captured = torch_pjrt.capture(step)
    data = list(batches(10))
    for x, y in data[:6]:
        captured(x, y)
    weight = model.get_parameter("0.weight")
    array = torch_pjrt.to_jax(weight.detach())
    saved, pending = weight.detach().clone(), weight.detach() * 2
    old = weight.detach().cpu()
    for x, y in data[6:]:
        captured(x, y)
    assert torch.equal(torch.from_dlpack(array), old)
    assert torch.equal(saved.cpu(), old)
    assert torch.equal(pending.cpu(), old * 2)
    assert not torch.equal(weight.detach().cpu(), old)


def test_parameters_are_bound_once_and_not_in_each_replay(monkeypatch: pytest.MonkeyPatch):
    bound: list[Binding] = []
    bind = Binding.__init__
    monkeypatch.setattr(Binding, "__init__", lambda b, targets: bound.append(b) or bind(b, targets))
    model, _, step = made()
    captured = torch_pjrt.capture(step)
    wide, narrow = list(batches(30)), [(x[:4], y[:4]) for x, y in batches(30)]
    for x, y in wide[:9]:
        captured(x, y)
    assert len(bound) == 1
    for (x, y), (z, w) in zip(
        wide[9:12], narrow[9:12], strict=True
    ):  # another recording binds them
        captured(x, y)
        captured(z, w)
    bound.clear()
    for x, y in narrow[12:18]:
        captured(x, y)
    assert len(bound) <= 1
    held = model.get_parameter("0.weight").detach().clone()  # shares the value
    before = held.cpu()
    captured(*narrow[18])
    captured(*narrow[19])
    assert torch.equal(held.cpu(), before)
    assert len(bound) <= 2


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_tensor_that_looks_different_is_stale_and_binds_nothing():
    x = torch.ones(2, device="pjrt")
    torch_pjrt.sync()
    buffer = buffer_of(x)
    fits = Target(weakref.ref(buffer), buffer.spec, is_read=True, is_taken=False)
    value = buffer.value

    with pytest.raises(Stale, match="a tensor that the step used was"):
        Binding([fits, replace(fits, spec=contiguous_spec((3,), torch.float32))])
    gc.collect()

    assert buffer.value is value


def test_what_is_dropped_is_freed_though_the_model_lives_on():
    def in_use() -> int:
        gc.collect()
        return torch.pjrt.memory_allocated()  # type: ignore[attr-defined]

    model, optimizer, step = made("adamw")
    captured = torch_pjrt.capture(step)
    batch = None
    for batch in batches(8):
        captured(*batch)
    del batch
    before = in_use()
    optimizer.zero_grad()
    without_gradients = in_use()
    del optimizer, step, captured

    weights = sum(p.nbytes for p in model.parameters())
    assert before - without_gradients >= weights
    assert without_gradients - in_use() >= 2 * weights  # AdamW's moments


def test_gradients_are_those_of_the_last_call():
    model, _, step = made("sgd")
    captured = torch_pjrt.capture(step)
    other, _, plain = made("sgd")
    for x, y in batches(12):
        captured(x, y)
        plain(x, y)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            assert torch.equal(p.grad.cpu(), q.grad.cpu())


def test_writes_between_replays_are_seen():
    model, _, step = made("sgd")
    captured = torch_pjrt.capture(step)
    other, _, plain = made("sgd")
    for i, (x, y) in enumerate(batches(15)):
        assert captured(x, y).item() == plain(x, y).item()
        if i % 3 == 2:
            for m in (model, other):
                with torch.no_grad():
                    m.get_parameter("0.weight").mul_(0.5)
                m.get_parameter("4.bias").data[0] = 1
    assert captured.replays > 5


def test_a_learning_rate_that_changes_is_noticed():
    _, optimizer, step = made("sgd")
    _, other, plain = made("sgd")
    captured = torch_pjrt.capture(step)
    for i, (x, y) in enumerate(batches(24)):
        if i == 12:
            for o in (optimizer, other):
                o.param_groups[0]["lr"] = 0.01
        assert captured(x, y).item() == plain(x, y).item()
    [why] = captured.restarts
    assert "'lr'" in why
    assert "0.1" in why
    assert "0.01" in why
    assert captured.replays > 12


def test_a_global_named_like_an_attribute_that_the_step_uses_is_none_of_its_business():
    names: dict[str, Any] = {"t": 0}
    exec("def step(x):\n    return x.t() + 1", names)
    captured = torch_pjrt.capture(names["step"])
    x = torch.ones(2, 3, device="pjrt")

    for names["t"] in range(6):
        captured(x)

    assert captured.restarts == []
    assert captured.replays == 3


def test_another_mode_of_the_model_is_noticed():
    model, _, step = made("sgd", dropout=0.5)
    other, _, plain = made("sgd", dropout=0.5)
    captured = torch_pjrt.capture(step)
    losses: list[list[float]] = []
    for m, f in ((model, captured), (other, plain)):
        torch.manual_seed(3)
        losses.append([])
        for i, (x, y) in enumerate(batches(16)):
            if i == 8:
                m.eval()
            losses[-1].append(f(x, y).item())
    assert losses[0] == losses[1]
    assert "training" in captured.restarts[0]


def test_a_replaced_parameter_is_noticed():
    model, _, _ = made("sgd")

    @torch_pjrt.capture
    def predict(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    model.eval()
    x = torch.randn(3, 8).to("pjrt")
    for _ in range(5):
        predict(x)
    model[4] = nn.Linear(16, 2).to("pjrt")
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(predict(x).cpu(), expected.cpu())
    assert predict.restarts


def test_each_shape_is_recorded_by_itself():
    _, _, step = made("sgd")
    _, _, plain = made("sgd")
    captured = torch_pjrt.capture(step)
    for i in range(16):
        for x, y in batches(1, size=4 + i % 2, seed=i):
            assert captured(x, y).item() == plain(x, y).item()
    assert captured.replays == 16 - 2 * 3


def test_a_python_argument_is_part_of_what_is_recorded():
    @torch_pjrt.capture
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    x = torch.ones(3, device="pjrt")
    for i in range(12):
        factor = float(i % 2 + 2)
        assert scaled(x, factor).tolist() == [factor] * 3


def test_results_are_new_tensors_each_time():
    @torch_pjrt.capture
    def both(x: torch.Tensor) -> dict[str, Any]:
        y = x + 1
        return {"y": y, "row": y[0], "x": x, "name": "both"}

    x = torch.arange(4.0, device="pjrt").reshape(2, 2)
    results = [both(x * i) for i in range(8)]
    for i, r in enumerate(results):
        assert r["y"].tolist() == [[1, i + 1], [2 * i + 1, 3 * i + 1]]
        assert r["row"].tolist() == [1, i + 1]
        assert r["name"] == "both"
    assert both.replays == 5
    last = x * 9
    assert both(last)["x"] is last


def test_random_numbers_go_on():
    @torch_pjrt.capture
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x)

    def run(f: Step) -> list[list[float]]:
        torch.manual_seed(5)
        x = torch.zeros(3, device="pjrt")
        values = [f(x).tolist() for _ in range(6)]
        return [*values, torch.rand(2, device="pjrt").tolist()]

    expected = run(torch.rand_like)
    assert run(drawn) == expected
    assert run(drawn) == expected
    assert drawn.replays > 5


def test_indices_out_of_range_are_still_found():
    table = torch.arange(10.0).reshape(5, 2).to("pjrt")

    @torch_pjrt.capture
    def looked_up(positions: torch.Tensor) -> torch.Tensor:
        return F.embedding(positions, table)

    for i in range(6):
        assert looked_up(torch.tensor([i % 5]).to("pjrt")).tolist() == [
            [2 * (i % 5), 2 * (i % 5) + 1]
        ]
    assert looked_up.replays > 1
    with pytest.raises(IndexError):
        looked_up(torch.tensor([7]).to("pjrt")).tolist()


def refusal_of(step: Step, *args: Any) -> str:
    captured = torch_pjrt.capture(step)
    with pytest.raises(CaptureError) as refused:
        for _ in range(8):
            captured(*args)
    return str(refused.value)


def test_a_python_number_that_changes_is_refused():
    numbers = itertools.count(2)
    text = refusal_of(lambda x: x * next(numbers), torch.ones(2, device="pjrt"))
    assert "a Python number changes" in text
    assert "Make it a tensor" in text


def test_a_step_that_counts_in_python_is_refused():
    class Trainer:
        def __init__(self) -> None:
            self.steps = 0

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return x + 1

    text = refusal_of(Trainer().step, torch.ones(2, device="pjrt"))
    assert "`self.steps` was" in text


def test_a_step_that_keeps_what_it_makes_is_refused():
    kept: list[torch.Tensor] = []
    hidden = [[kept]]

    def step(x: torch.Tensor) -> torch.Tensor:
        hidden[0][0].append(x + 1)
        return x * 2

    assert "keeps 1 tensors that it made" in refusal_of(step, torch.ones(2, device="pjrt"))


def test_a_result_that_needs_its_backward_outside_is_refused():
    weight = torch.ones(2, device="pjrt", requires_grad=True)
    assert "needs gradients" in refusal_of(
        lambda x: (x * weight).sum(), torch.ones(2, device="pjrt")
    )


def test_a_tensor_on_the_cpu_is_refused_at_once():
    captured = torch_pjrt.capture(lambda x: x + 1)
    with pytest.raises(CaptureError, match="tensors on pjrt"):
        captured(torch.ones(2))


def test_what_a_replay_cannot_see_is_found_when_it_is_checked():
    hidden = itertools.chain([2.0] * 9, itertools.repeat(3.0))

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * next(hidden)

    captured = torch_pjrt.capture(step)
    x = torch.ones(2, device="pjrt")
    for _ in range(6):
        captured(x)
    for _ in range(6):
        next(hidden)
    with pytest.raises(CaptureError, match="something else now than its recording"):
        for _ in range(20):
            captured(x)
    assert captured(x).tolist() == [3, 3]


def test_a_view_at_another_offset_is_another_recording():
    table = torch.arange(12.0).reshape(6, 2).to("pjrt")
    captured = torch_pjrt.capture(lambda x: x * 2)
    for i in range(12):
        assert captured(table[i % 2]).tolist() == [4 * (i % 2), 4 * (i % 2) + 2]


def test_a_mask_that_a_step_writes_to_chooses_what_it_chooses_then():
    mask = torch.tensor([True, False, False], device="pjrt")
    step = torch_pjrt.capture(lambda: mask.copy_(mask.roll(1)))
    x = torch.arange(3.0, device="pjrt")
    for i in range(12):
        step()
        assert x[mask].tolist() == [(i + 1) % 3]
    assert step.replays > 3


def test_arguments_that_share_memory_are_another_recording():
    @torch_pjrt.capture
    def add(x: torch.Tensor, y: torch.Tensor) -> None:
        x += y

    for i in range(10):
        x = torch.ones(2, device="pjrt")
        y = x if i % 2 else x * 3
        add(x, y)
        assert x.tolist() == ([2, 2] if i % 2 else [4, 4])
    assert add.replays > 3


def test_what_is_met_first_from_afar_is_still_looked_into():
    settings = {"scale": 2.0}
    holder = [settings]

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * settings["scale"] + 0 * len(holder)

    captured = torch_pjrt.capture(step)
    x = torch.ones(2, device="pjrt")
    for _ in range(6):
        captured(x)
    settings["scale"] = 3.0
    assert captured(x).tolist() == [3, 3]
    assert "scale" in captured.restarts[0]
