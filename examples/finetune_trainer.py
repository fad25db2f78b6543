"""Fine-tune a small Llama with Transformers' `Trainer`, on sequences that count by some step.

    python finetune_trainer.py                  # on the accelerator at hand, which is `pjrt`
    python finetune_trainer.py --lora           # with adapters of rank 8 alone, by PEFT
    python finetune_trainer.py --device cpu     # the same, to compare

Wants `torch-pjrt-ecosystem[transformers]`, and `peft` for `--lora`. It ends by continuing a sequence.
"""

import argparse
import tempfile
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WORDS = 32
LENGTH = 16


def sequences(n: int) -> list[dict[str, torch.Tensor]]:
    """Rows for `Trainer`: each starts somewhere and counts by 1, 2 or 3."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(WORDS, (n, 1), generator=generator)
    steps = torch.randint(1, 4, (n, 1), generator=generator)
    rows = (starts + steps * torch.arange(LENGTH)) % WORDS
    mask = torch.ones(LENGTH, dtype=torch.int64)
    return [{"input_ids": row, "attention_mask": mask, "labels": row} for row in rows]


def build_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2 * LENGTH,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["pjrt", "cpu"], default="pjrt")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lora", action="store_true")
    options = parser.parse_args()

    model: Any = build_model()
    if options.lora:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear")
        model = get_peft_model(model, config)
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=options.steps,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=options.steps // 3,
        save_strategy="no",
        report_to=[],
        dataloader_pin_memory=False,
        use_cpu=options.device == "cpu",
    )
    data: Any = sequences(512)
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()

    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    prompt = torch.tensor([[5, 7, 9, 11]], device=model.device)
    tokens = model.generate(
        input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False
    )
    print(f"on {model.device.type}; losses {' '.join(f'{loss:.4f}' for loss in losses)}")
    print("5 7 9 11 goes on with", *tokens[0, 4:].tolist())


if __name__ == "__main__":
    main()
