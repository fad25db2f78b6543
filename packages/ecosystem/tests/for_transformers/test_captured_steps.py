"""With TORCH_PJRT_CAPTURE_STEPS=1 steps of `Trainer` are replays, and do what they did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import text_models
from small import Classifier, Costs, collate, rows
from torch_pjrt.extend import counters
from torch_pjrt_ecosystem.for_transformers.captured_steps import CapturedSteps
from torch_pjrt_ecosystem.read_attributes import as_read, refresh

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
N_STEPS = 20


class Weighted(Trainer):
    """A trainer whose loss is its own, as the documentation shows."""

    weight = 0.5

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        loss = outputs["loss"] * self.weight
        return (loss, outputs) if return_outputs else loss


class Counting(Trainer):
    """A trainer whose steps have a side effect."""

    n_steps = 0

    def compute_loss(self, *args: Any, **named: Any) -> Any:
        self.n_steps += 1
        return super().compute_loss(*args, **named)


class Changing(TrainerCallback):
    """Does something to the trainer in the middle of its training."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self.change = change
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == N_STEPS // 2:
            self.change(self.trainer)


def trained(
    folder: Path,
    kind: type[Trainer] = Trainer,
    change: Callable[[Any], None] = lambda _: None,
    dropout: float = 0.0,
    **arguments: Any,
) -> Any:
    torch.manual_seed(0)
    given: Any = [{"x": x, "labels": y} for x, y in rows()]
    settings: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "max_steps": N_STEPS,
        "logging_steps": 5, "learning_rate": 1e-2, "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "dataloader_pin_memory": False,
    }  # fmt: skip
    changing = Changing(change)
    changing.trainer = trainer = kind(
        Classifier(dropout),
        TrainingArguments(**settings | arguments),
        train_dataset=given,
        eval_dataset=given[:8],
        data_collator=collate,
        callbacks=[changing],
    )
    trainer.train()
    return trainer


def result_of(trainer: Any) -> tuple[list[Any], list[torch.Tensor]]:
    """What was logged, and the weights."""
    names = ("loss", "grad_norm", "learning_rate", "eval_loss")
    lines = [[line[n] for n in names if n in line] for line in trainer.state.log_history]
    return lines, [p.detach().cpu() for p in trainer.model.parameters()]


def _lose_interest(trainer: Any) -> None:
    trainer.weight = 0.125


def _freeze(trainer: Any) -> None:
    next(trainer.model.parameters()).requires_grad_(False)


def _clip_less(trainer: Any) -> None:
    trainer.args.max_grad_norm = 100.0


# How it is trained; how many of its forwards and backwards are replays at least.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "as it is": ({}, 14),
    "dropout": ({"dropout": 0.5}, 14),
    "gradients of two batches": ({"gradient_accumulation_steps": 2}, 24),
    "evaluation between": ({"eval_strategy": "steps", "eval_steps": 5}, 14),
    "bfloat16": ({"bf16": True}, 14),
    "a loss of its own": ({"kind": Weighted}, 14),
    "a loss that changes": ({"kind": Weighted, "change": _lose_interest}, 8),
    "a weight that is frozen": ({"change": _freeze}, 8),
    "another limit of gradients": ({"change": _clip_less}, 8),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("case", CASES)
def test_captured_steps_do_what_steps_do(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, n_replays = CASES[case]
    expected = result_of(trained(tmp_path, **options))
    monkeypatch.setenv("TORCH_PJRT_CAPTURE_STEPS", "1")
    before = counters.replays

    found = result_of(trained(tmp_path, **options))

    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert counters.replays - before >= n_replays


@pytest.mark.slow("rows")
@pytest.mark.parametrize("padding", [0, 2])
def test_replays_of_a_model_of_text_read_no_mask(
    padding: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a mask leaves something out is known of the host's, in replays too."""
    monkeypatch.setenv("TORCH_PJRT_CAPTURE_STEPS", "1")
    mask = torch.tensor([1] * (6 - padding) + [0] * padding)
    given: Any = [
        {"input_ids": (w := torch.randint(1, 32, (6,))), "labels": w, "attention_mask": mask}
        for _ in range(64)
    ]
    costs = Costs()

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            costs.mark()

    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, max_steps=14, logging_steps=100,
        save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    before = counters.replays

    net = text_models.model("LlamaForCausalLM")
    Trainer(net, arguments, train_dataset=given, callbacks=[Watch()]).train()

    assert counters.replays - before >= 8
    assert [reads for reads, *_ in costs.steps[5:]] == [0] * len(costs.steps[5:])


def test_step_that_cannot_be_captured_runs_as_it_is_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_PJRT_CAPTURE_STEPS", "1")
    before = counters.replays

    with pytest.warns(UserWarning, match=r"(?s)cannot be captured.*n_steps"):
        trainer = trained(tmp_path, Counting)

    assert trainer.n_steps == N_STEPS
    assert counters.replays == before


def test_nothing_is_captured_unless_asked_for(tmp_path: Path) -> None:
    before = counters.replays

    trainer = trained(tmp_path, max_steps=8)

    assert counters.replays == before
    assert not isinstance(trainer.training_step, CapturedSteps)


def test_stand_in_has_what_was_read_and_gives_what_is_set() -> None:
    class Inner:
        size = 2

    class Outer:
        def __init__(self) -> None:
            self.inner, self.read, self.unread = Inner(), 1, object()

    x: Any = Outer()
    stand_in = as_read(x, (Inner,))

    assert (stand_in.read, stand_in.inner.size) == (1, 2)
    stand_in.set = 3
    assert x.set == 3
    x.read = 4
    refresh(stand_in)
    assert stand_in.read == 4
    assert "unread" not in vars(stand_in)
    assert stand_in.inner is not x.inner
    with pytest.raises(AttributeError, match="absent"):
        stand_in.absent  # noqa: B018
