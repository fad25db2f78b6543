"""`Trainer` trains on `pjrt` as on the CPU, reads nothing between lines of its log, and resumes exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from small import Classifier, Costs, collate, rows
from torch_pjrt_ecosystem.placement import LeavesDevice

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Watch(TrainerCallback):
    """Marks where steps end, and keeps what was logged."""

    def __init__(self) -> None:
        self.costs = Costs()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.costs.mark()


def trainer(folder: Path, dropout: float = 0.0, **arguments: Any) -> tuple[Trainer, Watch]:
    given = [{"x": x, "labels": y} for x, y in rows()]
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 12,
        "logging_steps": 6,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    watch = Watch()
    made = Trainer(
        Classifier(dropout),
        TrainingArguments(**settings | arguments),
        train_dataset=given,  # type: ignore[arg-type]
        eval_dataset=given[:8],  # type: ignore[arg-type]
        data_collator=collate,  # type: ignore[arg-type]
        callbacks=[watch],
    )
    return made, watch


def logged(made: Trainer) -> list[float]:
    """Losses and norms of gradients in the log."""
    lines = [line for line in made.state.log_history if "loss" in line]
    return [line[name] for line in lines for name in ("loss", "grad_norm")]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("accumulated", [2, 1])
def test_losses_are_the_cpus_with_one_program_a_step_and_no_read(
    tmp_path: Path, accumulated: int
) -> None:
    made, watch = trainer(tmp_path, gradient_accumulation_steps=accumulated)
    made.train()

    assert made.args.device == torch.device("pjrt:0")
    assert {p.device.type for p in made.model.parameters()} == {"pjrt"}  # type: ignore[union-attr]
    steps = watch.costs.steps
    assert set(steps[:5] + steps[6:]) == {(0, 1, 0)}  # the second step, too: one program for all
    assert steps[5][0] == 2  # the loss and the norm that are logged
    assert watch.costs.fallbacks == 0
    on_cpu, _ = trainer(tmp_path, gradient_accumulation_steps=accumulated, use_cpu=True)
    on_cpu.train()
    torch.testing.assert_close(logged(made), logged(on_cpu), rtol=1e-5, atol=1e-6)


def test_evaluation_and_prediction_are_the_cpus(tmp_path: Path) -> None:
    found = []
    for use_cpu in (
        False,
        True,
    ):  # one after the other: all `Trainer`s of a process share one device
        made, _ = trainer(tmp_path, use_cpu=use_cpu)
        predicted = made.predict(made.eval_dataset).predictions  # type: ignore[arg-type]
        found.append((made.evaluate()["eval_loss"], predicted))

    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_bf16_is_the_cpus_autocast(tmp_path: Path) -> None:
    made, watch = trainer(tmp_path, bf16=True)
    made.train()
    on_cpu, _ = trainer(tmp_path, bf16=True, use_cpu=True)
    on_cpu.train()
    exact, _ = trainer(tmp_path)
    exact.train()

    torch.testing.assert_close(logged(made), logged(on_cpu), rtol=1e-2, atol=1e-3)
    assert logged(made) != logged(exact)
    assert set(watch.costs.steps[6:]) == {(0, 1, 0)}


def test_fp16_has_a_scaler_and_its_schedule_does_not_count_what_was_skipped(tmp_path: Path) -> None:
    made, watch = trainer(tmp_path, fp16=True)
    scaler: Any = made.accelerator.scaler
    scaler._init_scale = 2.0**20  # more than float16 holds, for a few steps
    made.train()

    n_skipped = round(torch.log2(torch.tensor(2.0**20 / scaler.get_scale())).item())
    assert 0 < n_skipped < 10
    assert made.lr_scheduler.last_epoch == 12 - n_skipped  # type: ignore[union-attr]
    assert {cost[0] for cost in watch.costs.steps[6:]} == {1}  # whether it was skipped


@pytest.mark.slow("rows")
@pytest.mark.parametrize("how", [{}, {"torch_compile_backend": "pjrt"}], ids=["default", "named"])
def test_compiled_it_is_our_backend(tmp_path: Path, how: dict[str, Any]) -> None:
    made, watch = trainer(tmp_path, torch_compile=True, **how)
    made.train()
    exact, _ = trainer(tmp_path, use_cpu=True)
    exact.train()

    torch.testing.assert_close(logged(made), logged(exact), rtol=1e-5, atol=1e-6)
    assert set(watch.costs.steps[6:]) == {(0, 1, 0)} and watch.costs.fallbacks == 0


def test_a_checkpoint_resumes_exactly_with_dropout(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 5, "logging_steps": 1}
    whole, _ = trainer(tmp_path / "whole", 0.5, **saving)
    whole.train()
    resumed, _ = trainer(tmp_path / "resumed", 0.5, **saving)

    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))

    assert logged(resumed) == logged(whole)
    for mine, wanted in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):  # type: ignore[union-attr]
        assert torch.equal(mine.cpu(), wanted.cpu())


def at_third_step(value: float) -> Callable[[Trainer], None]:
    """Has the third step's loss be that value, for what is logged."""

    def change(made: Trainer) -> None:
        step, count = made.training_step, iter(range(100))

        def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
            loss = step(*args, **kwargs)
            return torch.full_like(loss, value) if next(count) == 2 else loss

        made.training_step = training_step  # type: ignore[method-assign]

    return change


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    ("value", "on"),
    [(float("nan"), True), (float("inf"), True), (2.0, True), (float("nan"), False)],
)
def test_losses_that_are_not_finite_are_logged_as_on_the_cpu(
    tmp_path: Path, value: float, on: bool
) -> None:
    lines = []
    for use_cpu in (False, True):
        made, _ = trainer(tmp_path, logging_nan_inf_filter=on, use_cpu=use_cpu)
        at_third_step(value)(made)
        mine = made.training_step
        made.train()
        assert made.training_step is mine and made.args.logging_nan_inf_filter is on
        lines.append(logged(made))

    torch.testing.assert_close(*lines, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_model_that_leaves_the_device_is_a_warning(tmp_path: Path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)

    with pytest.warns(LeavesDevice, match="Trainer moves a model from `pjrt` to `cpu`"):
        Trainer(Classifier().to("pjrt"), arguments, data_collator=collate)  # type: ignore[arg-type]
