"""A step of Transformers' or Lightning's `Trainer`, as it is and by replays, beside eager PyTorch on the CPU.

    python benchmarks/captured_trainer.py [--library lightning] [--layers 4] [--width 64]
        [--steps 200] [--rounds 3]

In turns.
A Llama with random weights on made-up tokens, AdamW, clipped gradients, a linear schedule. Each round trains
anew in a process of its own for each way. Columns: the median and the least of the later half of the steps,
of all rounds, and whether the losses that were logged are those of the first way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

WAYS = ("as it is", "by replays", "cpu, eager")


BATCH, LENGTH, WORDS = 4, 32, 256


def model_of(layers: int, width: int) -> Any:
    import torch
    from transformers import (  # pyright: ignore[reportMissingImports]
        LlamaConfig,
        LlamaForCausalLM,
    )

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def rows_of(steps: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, WORDS, (BATCH * steps, LENGTH), generator=generator)
    return [{"input_ids": w, "labels": w, "attention_mask": torch.ones_like(w)} for w in words]


def by_transformers(way: str, layers: int, width: int, steps: int) -> dict[str, Any]:
    """Seconds of each step, and the losses that were logged."""
    from transformers import (  # pyright: ignore[reportMissingImports]
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Clock(TrainerCallback):
        """Notes the seconds of each step."""

        seconds: list[float] = []  # noqa: RUF012
        begun = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.begun)

    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        logging_steps=steps // 4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=way == "cpu, eager",
    )
    clock, model = Clock(), model_of(layers, width)
    trainer = Trainer(model=model, args=arguments, train_dataset=rows_of(steps), callbacks=[clock])
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {"seconds": clock.seconds, "losses": losses}


def by_lightning(way: str, layers: int, width: int, steps: int) -> dict[str, Any]:
    """The same; losses are those of four steps."""
    import lightning.pytorch as pl  # pyright: ignore[reportMissingImports]
    import torch

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(layers, width)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = self.model(**batch).loss
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), 5e-5)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    class Clock(pl.Callback):
        """Notes the seconds of each step, and of some the losses."""

        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.losses: list[float] = []
            self.begun = 0.0

        def on_train_batch_start(self, *_: Any, **__: Any) -> None:
            self.begun = time.perf_counter()

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, *_: Any, **__: Any
        ) -> None:
            self.seconds.append(time.perf_counter() - self.begun)
            if len(self.seconds) % (steps // 4) == 0:
                self.losses.append(float(outputs["loss"]))

    clock = Clock()
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu" if way == "cpu, eager" else "pjrt",
        gradient_clip_val=1.0,
        logger=False,
        callbacks=[clock],
        default_root_dir=tempfile.mkdtemp(),
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    module = Module().train()
    trainer.fit(module, torch.utils.data.DataLoader(rows_of(steps), BATCH, shuffle=True))
    return {"seconds": clock.seconds, "losses": clock.losses}


LIBRARIES = {"transformers": by_transformers, "lightning": by_lightning}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--library", choices=LIBRARIES, default="transformers")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help="train once, and print what was seen")
    given = parser.parse_args()
    if given.way:
        train = LIBRARIES[given.library]
        seen = train(given.way, given.layers, given.width, given.steps)
        print(json.dumps({**seen, "seconds": seen["seconds"][given.steps // 2 :]}))
        return
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    losses: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        for way in WAYS:
            replays = {"TORCH_PJRT_CAPTURE_STEPS": str(int(way == "by replays"))}
            ended = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--way", way],
                env={**os.environ, **replays},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            seen = json.loads(ended.stdout.splitlines()[-1])
            seconds[way] += seen["seconds"]
            losses[way] = seen["losses"]
    medians = {way: statistics.median(seconds[way]) for way in WAYS}
    print("| way | median, ms | of the first | least, ms | losses |")
    print("|---|--:|--:|--:|---|")
    for way in WAYS:
        off = max(abs(x / y - 1) for x, y in zip(losses[way], losses[WAYS[0]], strict=True))
        print(
            f"| {way} | {1000 * medians[way]:.1f} | {medians[way] / medians[WAYS[0]]:.2f} "
            f"| {1000 * min(seconds[way]):.1f} | {'the same' if not off else f'{off:.0e} off'} |"
        )


if __name__ == "__main__":
    main()
