"""Batches get one of few lengths: they give what shorter ones give, by as few programs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from small import Costs
from text_models import model
from torch_pjrt_ecosystem.collating import PadToBuckets, powers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def row(n: int, **more: Any) -> dict[str, Any]:
    return {"input_ids": list(range(2, 2 + n)), "labels": list(range(2, 2 + n)), **more}


def test_rows_are_filled_up_to_the_first_length_that_holds_them() -> None:
    collate = PadToBuckets(1, buckets=(4, 8))

    batch = collate([row(3), row(5)])

    assert batch["input_ids"].tolist() == [[2, 3, 4, 1, 1, 1, 1, 1], [2, 3, 4, 5, 6, 1, 1, 1]]
    assert batch["labels"][0].tolist() == [2, 3, 4] + [-100] * 5
    assert batch["attention_mask"].tolist() == [[1] * 3 + [0] * 5, [1] * 5 + [0] * 3]
    assert collate([row(4)])["input_ids"].shape == (1, 4)


def test_what_has_no_length_of_the_tokens_stays() -> None:
    rows = [row(3, labels=1, score=[0.5, 1.0]), row(2, labels=0, score=[2.0, 3.0])]

    batch = PadToBuckets(1, buckets=(4,))(rows)

    assert batch["labels"].tolist() == [1, 0]
    assert batch["score"].tolist() == [[0.5, 1.0], [2.0, 3.0]]


def test_another_side_and_other_values() -> None:
    batch = PadToBuckets(1, buckets=(4,), pads={"weights": 9}, side="left")(
        [row(2, weights=[5, 6]), row(3, weights=[5, 6, 7])]
    )

    assert batch["input_ids"].tolist() == [[1, 1, 2, 3], [1, 2, 3, 4]]
    assert batch["weights"].tolist() == [[9, 9, 5, 6], [9, 5, 6, 7]]


def test_it_stands_around_another_collator() -> None:
    def inner(rows: list[Any]) -> dict[str, Any]:
        return {
            "input_ids": torch.tensor([r["input_ids"] for r in rows]),
            "masks": torch.ones(len(rows), 3, 3),
        }

    batch = PadToBuckets(1, buckets=(5,), around=inner)([row(3)])

    assert batch["input_ids"].tolist() == [[2, 3, 4, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0]]
    assert batch["masks"].shape == (1, 3, 3)


def test_a_batch_that_is_longer_than_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"longer than every bucket(.|\n)*saw: 9 tokens"):
        PadToBuckets(1, buckets=(4, 8))([row(9)])


@pytest.mark.parametrize(("least", "most"), [(64, 8192), (16, 100), (8, 8), (100, 130)])
def test_lengths_are_few_and_waste_a_third_at_most(least: int, most: int) -> None:
    found = powers(least, most)

    assert found[0] == least and found[-1] == most
    assert all(a < b <= 1.5 * a + 1 for a, b in pairwise(found))


@pytest.mark.slow
def test_a_trainer_with_rows_of_many_lengths_has_a_program_for_each_of_few(tmp_path: Any) -> None:
    """The losses are those of the CPU with rows that are only as long as their batch."""
    rows = [row(n) for n in (5, 9, 12, 7, 16, 3, 11, 14, 6, 8)]
    losses, compiled = [], []
    for use_cpu, buckets in ((True, range(1, 17)), (False, (8, 16))):
        arguments = TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=1,
            num_train_epochs=1,
            learning_rate=1e-3,
            logging_steps=100,
            lr_scheduler_type="constant",
            data_seed=0,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            use_cpu=use_cpu,
        )
        costs = Costs()
        costs.mark()
        made = Trainer(
            model("LlamaForCausalLM"),
            arguments,
            train_dataset=rows,  # type: ignore[arg-type]
            data_collator=PadToBuckets(1, buckets=buckets),
        )
        made.train()
        costs.mark()
        losses.append(made.state.log_history[-1]["train_loss"])
        compiled.append(costs.steps[0][2])

    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-4)
    assert compiled[1] <= 5, compiled  # ten lengths: at least ten programs
