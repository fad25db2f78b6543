"""PEFT: adapters of a Llama, trained by `Trainer`, saved, and loaded onto another base on the device."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from transformers import Trainer, TrainingArguments

from library_examples import check_is_on
from library_examples.language import Watch, arguments, llama
from small import Costs


def _trained(config: Any, device: str, costs: Costs) -> Any:
    torch.manual_seed(0)
    model: Any = get_peft_model(llama(), config)
    ids = torch.randint(3, 64, (32, 12), generator=torch.Generator().manual_seed(0))
    rows: Any = [{"input_ids": r, "labels": r, "attention_mask": torch.ones_like(r)} for r in ids]
    trainer = Trainer(
        model,
        TrainingArguments(**arguments(device, learning_rate=1e-2)),
        train_dataset=rows,
        callbacks=[Watch(costs)],
    )
    trainer.train()
    check_is_on(model, device)
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    base: Any = llama()
    again = PeftModel.from_pretrained(base.to(device), folder)
    check_is_on(again, device)
    with torch.no_grad():
        logits = again.eval()(ids[:2].to(device)).logits.cpu()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line], logits


def lora(device: str, costs: Costs) -> Any:
    """Of queries and values."""
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
    return _trained(config, device, costs)


def dora(device: str, costs: Costs) -> Any:
    """The same with magnitudes."""
    targets = ["q_proj", "v_proj"]
    config = LoraConfig(task_type="CAUSAL_LM", r=4, use_dora=True, target_modules=targets)
    return _trained(config, device, costs)


def ia3(device: str, costs: Costs) -> Any:
    """Factors of keys, values and the inner layer."""
    config = IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    )
    return _trained(config, device, costs)
