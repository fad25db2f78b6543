"""Checkpoints of `Trainer` with the device's random state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt_ecosystem import random_states
from torch_pjrt_ecosystem.replacing import wrap


def install(trainer: Any) -> None:
    """`trainer` is `transformers.trainer`."""
    wrap(trainer.Trainer, "_save_rng_state", _save)
    wrap(trainer.Trainer, "_load_rng_state", _load)


def _save(original: Callable[..., Any], self: Any, output_dir: str) -> None:
    original(self, output_dir)
    if self.args.device.type == "pjrt":
        random_states.save(output_dir, self.args.process_index)


def _load(original: Callable[..., Any], self: Any, checkpoint: str | None) -> None:
    original(self, checkpoint)
    if checkpoint is not None and self.args.device.type == "pjrt":
        random_states.load(checkpoint, self.args.process_index)
