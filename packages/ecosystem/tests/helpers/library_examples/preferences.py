"""TRL: supervised fine-tuning of a Llama, and training on preferences."""

from __future__ import annotations

from typing import Any

import datasets
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from library_examples import check_is_on, sums
from library_examples.language import Watch, arguments, llama, texts, tokenizer
from small import Costs

datasets.disable_progress_bars()
_LOGGED = ("loss", "entropy", "mean_token_accuracy", "num_tokens", "rewards/margins")


def _trained(trainer: Any, device: str) -> Any:
    trainer.train()
    check_is_on(trainer.model, device)
    line = trainer.state.log_history[0]
    return {k: line[k] for k in _LOGGED if k in line}, sums(trainer.model)


def _arguments(device: str) -> dict[str, Any]:
    return arguments(device, max_length=16, bf16=False, gradient_checkpointing=False)


def sft(device: str, costs: Costs) -> Any:
    """Texts of one length."""
    trainer = SFTTrainer(
        model=llama(),
        args=SFTConfig(**_arguments(device)),
        train_dataset=datasets.Dataset.from_dict({"text": texts(32, 0)}),
        processing_class=tokenizer(),
        callbacks=[Watch(costs)],
    )
    return _trained(trainer, device)


def dpo(device: str, costs: Costs) -> Any:
    """Pairs of answers, and a model to stay near to."""
    pairs = {
        "prompt": texts(32, 1),
        "chosen": [f" {text}" for text in texts(32, 2)],
        "rejected": [f" {text}" for text in texts(32, 3)],
    }
    trainer = DPOTrainer(
        model=llama(),
        ref_model=llama(),
        args=DPOConfig(**_arguments(device)),
        train_dataset=datasets.Dataset.from_dict(pairs),
        processing_class=tokenizer(),
        callbacks=[Watch(costs)],
    )
    return _trained(trainer, device)
