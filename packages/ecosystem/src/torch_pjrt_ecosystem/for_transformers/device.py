"""The device that `Trainer` uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import wrap_property


def install(training_args: Any) -> None:
    """`training_args` is `transformers.training_args`."""
    wrap_property(training_args.TrainingArguments, "_setup_devices", _setup_devices)


def _setup_devices(original: Callable[[Any], torch.device], self: Any) -> torch.device:
    """Accelerate's device where that is ours: Transformers goes through a list of its own."""
    device = original(self)
    chosen = getattr(self.distributed_state, "device", device)
    if chosen.type != "pjrt" or self.use_cpu:
        return device
    self._n_gpu = 1  # as for other accelerators
    return chosen
