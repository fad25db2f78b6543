"""A warning where `Trainer` takes a model from `pjrt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt_ecosystem.placement import warn_if_leaving
from torch_pjrt_ecosystem.replacing import wrap


def install(trainer: Any) -> None:
    """`trainer` is `transformers.trainer`."""
    wrap(trainer.Trainer, "_move_model_to_device", _move_model_to_device)


def _move_model_to_device(original: Callable[..., Any], self: Any, model: Any, device: Any) -> Any:
    warn_if_leaving(model, device, "Trainer", f"`TrainingArguments.device` is `{device}`")
    return original(self, model, device)
