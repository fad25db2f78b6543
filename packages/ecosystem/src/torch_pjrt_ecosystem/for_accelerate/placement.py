"""A warning where Accelerate takes a model from `pjrt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt_ecosystem.placement import warn_if_leaving
from torch_pjrt_ecosystem.replacing import wrap


def install(accelerator: Any) -> None:
    """`accelerator` is `accelerate.accelerator`."""
    wrap(accelerator.Accelerator, "prepare_model", _prepare_model)


def _prepare_model(
    original: Callable[..., Any], self: Any, model: Any, *args: Any, **kwargs: Any
) -> Any:
    if self.device_placement:
        why = f"`Accelerator().device` is `{self.device}`"
        warn_if_leaving(model, self.device, "Accelerate", why)
    return original(self, model, *args, **kwargs)
