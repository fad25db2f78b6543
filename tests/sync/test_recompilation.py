"""A training loop compiles a few programs at its start and none afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_pjrt
from fixture_types import Count

STEPS = 50


class Loop:
    """A small network that is trained, as users write it."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)
        ).to("pjrt")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.data = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(4)]

    def loss(self, step: int) -> torch.Tensor:
        x, y = self.data[step % len(self.data)]
        return F.cross_entropy(self.model(x.to("pjrt")), y.to("pjrt"))

    def step(self, step: int) -> torch.Tensor:
        loss = self.loss(step)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def test_plain_steps_compile_at_most_three_programs(compiled: Count) -> None:
    loop = Loop()
    after = []

    for step in range(STEPS):
        loop.step(step)
        after.append(compiled())

    assert after[-1] <= 3
    assert after[2] == after[-1], f"programs compiled after each step: {after}"


def test_reading_the_loss_at_every_step_compiles_nothing_more(compiled: Count) -> None:
    loop = Loop()
    losses, after = [], []

    for step in range(STEPS):
        losses.append(loop.step(step).item())
        after.append(compiled())

    assert after[2] == after[-1] <= 3, f"programs compiled after each step: {after}"
    assert losses[-1] < losses[0]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("clip", [False, True])
def test_schedule_dropout_accumulation_and_evaluation_compile_nothing_after_their_third_time(
    compiled: Count, clip: bool
) -> None:
    loop = Loop(dropout=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(loop.optimizer, STEPS)
    kinds: dict[str, list[int]] = {"accumulate": [], "update": [], "evaluate": []}

    def note(kind: str, before: int) -> None:
        kinds[kind].append(compiled() - before)

    for step in range(STEPS):
        before = compiled()
        (loop.loss(step) / 2).backward()
        if step % 2 == 0:
            torch_pjrt.sync()
            note("accumulate", before)
            continue
        if clip:
            nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        schedule.step()
        note("update", before)
        if step % 10 == 9:
            before = compiled()
            loop.model.eval()
            with torch.no_grad():
                accuracy = torch.stack([loop.loss(i) for i in range(4)]).mean().item()
            loop.model.train()
            note("evaluate", before)
            assert accuracy > 0

    assert all(sum(counts[3:]) == 0 for counts in kinds.values()), kinds
    assert compiled() <= 7, kinds


def test_number_that_changes_becomes_an_input_of_the_program(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")

    results = [((x * (0.5 + i)) + i).sum().item() for i in range(10)]

    assert results == [3 * (0.5 + i) + 3 * i for i in range(10)]
    assert compiled() <= 2


def test_number_that_stays_is_a_constant_of_the_program(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt")

    results = [((x * 2) + i).sum().item() for i in range(5)]

    assert results == [3 * (2 + i) for i in range(5)]
    assert compiled() <= 2


def test_numbers_that_differ_in_turn_all_become_inputs(compiled: Count) -> None:
    x = torch.ones(2, dtype=torch.float64).to("pjrt")
    pairs = [(1.0, 1.0), (2.0, 1.0), (2.0, 3.0), (1.0, 5.0), (-0.0, float("inf")), (7.0, 9.0)]

    results = [((x * a) - b).sum().item() for a, b in pairs]

    assert results == [2 * (a - b) for a, b in pairs]
    assert compiled() <= 3


def test_int_float_and_bool_numbers_are_told_apart(compiled: Count) -> None:
    x = torch.ones(2, dtype=torch.int64, device="pjrt")

    results = [(x * n).cpu() for n in (1, 1.0, True, 2, 2.0)]

    assert [r.dtype for r in results] == [torch.int64, torch.float32] + [torch.int64] * 2 + [
        torch.float32
    ]
    assert [r.tolist() for r in results] == [[1, 1], [1, 1], [1, 1], [2, 2], [2, 2]]


def test_number_as_input_promotes_as_a_number_and_not_as_a_tensor(compiled: Count) -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        x = torch.ones(2, dtype=dtype, device="pjrt")
        for n in (0.1, 0.2, 0.3):
            y = (x * n).cpu()
            assert y.dtype == dtype
            assert torch.equal(y, torch.ones(2, dtype=dtype) * n)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_number_as_input_gives_the_dtype_of_a_constant_one(
    compiled: Count, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = torch.ones(shape, dtype=dtype)

    for numbers in ((1, 2, 3), (1.5, 2.5, 3.5)):
        for n in numbers:
            torch.testing.assert_close((x.to("pjrt") * n).cpu(), x * n)


def test_learning_rate_as_a_number_of_each_group_is_an_input(compiled: Count) -> None:
    loop = Loop()
    after = []

    for step in range(10):
        for group in loop.optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + step)
        loop.step(step)
        after.append(compiled())

    assert after[2] == after[-1] <= 3, after


def test_another_shape_is_another_program_and_the_old_one_is_kept(compiled: Count) -> None:
    def compute(n: int) -> float:
        return (torch.ones(n, device="pjrt") * 2).sum().item()

    assert [compute(n) for n in (3, 4, 3, 4, 3)] == [6, 8, 6, 8, 6]
    assert compiled() == 2


def test_first_step_of_a_shape_is_the_program_of_the_second(compiled: Count) -> None:
    weight = torch.ones(7, 11).to("pjrt")

    for _ in range(2):
        (torch.ones(13, 11).to("pjrt") @ weight.t()).tolist()

    assert compiled() == 1


@pytest.mark.slow
def test_collecting_garbage_at_any_time_changes_nothing(compiled: Count) -> None:
    import gc

    loop = Loop()
    after = []

    for step in range(12):
        loop.step(step)
        if step % 3 == 0:
            gc.collect()
        after.append(compiled())

    assert after[2] == after[-1], after


def test_new_model_of_the_same_shape_reuses_the_programs(compiled: Count) -> None:
    after = []

    for _ in range(2):
        loop = Loop()
        for step in range(4):
            loop.step(step)
        torch_pjrt.sync()
        after.append(compiled())

    assert after[0] == after[1]


@pytest.mark.parametrize(
    "make", [torch.empty_like, lambda x: x.new_empty(3), lambda x: torch.empty(3, device=x.device)]
)
def test_tensor_without_content_is_no_part_of_a_program(
    make: Callable[[torch.Tensor], torch.Tensor], compiled: Count
) -> None:
    x = torch.ones(3).to("pjrt")
    torch_pjrt.sync()
    before = compiled()
    held = make(x)
    for _ in range(3):
        x.add_(1)
        torch_pjrt.sync()
    assert compiled() - before == 1
    assert held.shape == x.shape


def test_first_step_takes_what_changes_as_inputs_so_that_one_program_serves(
    compiled: Count,
) -> None:
    loop = Loop()
    after = []

    for step in range(5):
        loop.step(step)
        after.append(compiled())

    assert after == [1] * 5


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_learning_rate_that_begins_to_change_compiles_nothing(compiled: Count, how: str) -> None:
    loop = Loop()
    ways: dict[str, Any] = {how: True}
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=1e-2, **ways)
    schedule = torch.optim.lr_scheduler.StepLR(loop.optimizer, step_size=2)
    after = []

    for step in range(6):
        loop.step(step)
        if step % 2:  # an epoch of two steps
            schedule.step()
        after.append(compiled())

    assert after == [1] * 6
