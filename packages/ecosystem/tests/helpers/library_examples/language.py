"""A small Llama, a tokenizer of 64 words, texts of those, and arguments of Transformers' `Trainer`."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)

from small import Costs


def llama() -> LlamaForCausalLM:
    """The same parameters each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        )
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """Its words are w0, w1, ..."""
    words = ["<s>", "</s>", "<pad>", "<unk>", *(f"w{i}" for i in range(60))]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )


def texts(n: int, seed: int, length: int = 6) -> list[str]:
    """The same each time."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(60, (n, length), generator=generator)
    return [" ".join(f"w{int(i)}" for i in row) for row in words]


class Watch(TrainerCallback):
    """Marks where steps end."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.costs.mark()


def arguments(device: str, **given: Any) -> dict[str, Any]:
    """Eight steps; what is lost in them is logged at the end."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": 4,
        "max_steps": 8,
        "logging_steps": 8,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "use_cpu": device == "cpu",
        **given,
    }
