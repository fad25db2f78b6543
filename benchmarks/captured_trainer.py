"""A step of Transformers' `Trainer` as it is and by replays, beside eager PyTorch on the CPU, in turns.

    python benchmarks/captured_trainer.py [--layers 4] [--width 64] [--steps 200] [--rounds 3]

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


def trained(way: str, layers: int, width: int, steps: int) -> dict[str, Any]:
    """Seconds of each step, and the losses that were logged."""
    import torch
    from transformers import (  # pyright: ignore[reportMissingImports]
        LlamaConfig,
        LlamaForCausalLM,
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

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )
    words = torch.randint(0, 256, (4 * steps, 32), generator=torch.Generator().manual_seed(1))
    rows: Any = [{"input_ids": w, "labels": w, "attention_mask": torch.ones_like(w)} for w in words]
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        max_steps=steps,
        logging_steps=steps // 4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=way == "cpu, eager",
    )
    clock = Clock()
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[clock])
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {"seconds": clock.seconds[steps // 2 :], "losses": losses}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help="train once, and print what was seen")
    given = parser.parse_args()
    if given.way:
        print(json.dumps(trained(given.way, given.layers, given.width, given.steps)))
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
