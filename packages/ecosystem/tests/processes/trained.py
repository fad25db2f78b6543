"""A process that trains with Transformers' `Trainer`, and prints what it logged, and what steps cost."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["USE_TORCH_XLA"] = "0"
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import torch
from torch import nn

from small import Costs, model, rows
from torch_pjrt_ecosystem.autoload import autoload

autoload()

FSDP = {
    "fsdp": True,
    "fsdp_config": {"version": 2, "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 10},
}


class Classifier(nn.Module):
    """A model as `Trainer` wants one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    costs = Costs()

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            costs.mark()

    given: Any = [{"x": x, "labels": y} for x, y in rows()]
    batch = 8 // int(os.environ.get("WORLD_SIZE", "1"))
    options: dict[str, Any] = FSDP if sys.argv[1] == "fsdp" else {}
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        max_steps=12,
        logging_steps=6,
        learning_rate=1e-2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        **options,
    )
    trainer = Trainer(
        Classifier(), arguments, train_dataset=given, eval_dataset=given, callbacks=[Watch()]
    )
    trainer.train()
    evaluated = trainer.evaluate()["eval_loss"]
    parts: list[Any] = [p.detach() for p in trainer.model.parameters()]
    wholes = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parts]
    said = {
        "rank": arguments.process_index,
        "of": arguments.world_size,
        "device": str(arguments.device),
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
        "evaluated": evaluated,
        "weights": [w.double().cpu().sum().item() for w in wholes],
        "held": sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in parts),
        "steps": costs.steps,
        "fallbacks": costs.fallbacks,
    }
    trainer.accelerator.end_training()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
