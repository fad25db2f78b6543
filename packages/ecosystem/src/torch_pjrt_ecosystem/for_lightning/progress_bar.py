"""Progress bars that do not read each step.

What is logged with `prog_bar=True` becomes a number as it is logged. Here a tensor on `pjrt` stays one until
somebody asks: `Trainer.progress_bar_metrics` at once, a progress bar at most twice a second, and after the
last batch of an epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import NotThere, wrap, wrap_property

PERIOD_S = 0.5


def install(module: ModuleType) -> None:
    """`module` is one of the three with what is logged, `Trainer`, and the base of progress bars."""
    for owner, change in _CHANGES.items():
        if module.__name__.endswith(owner):
            change(module)


def _numbers_later(result: Any) -> None:
    if "convert_tensors_to_scalars" not in vars(result):
        raise NotThere(f"`{result.__name__}` has no `convert_tensors_to_scalars`")
    wrap(result, "convert_tensors_to_scalars", _as_it_is)


def _as_it_is(original: Callable[[Any], Any], value: Any) -> Any:
    is_ours = isinstance(value, torch.Tensor) and value.device.type == "pjrt" and value.numel() == 1
    return value.detach() if is_ours else original(value)


def _numbers_of(original: Callable[[Any], Mapping[str, Any]], self: Any) -> dict[str, Any]:
    return {
        name: x.item() if isinstance(x, torch.Tensor) and x.numel() == 1 else x
        for name, x in original(self).items()
    }


def _get_metrics(
    original: Callable[..., dict[str, Any]], self: Any, trainer: Any, model: Any
) -> dict[str, Any]:
    if trainer.strategy.root_device.type != "pjrt":
        return original(self, trainer, model)
    drawn_s, drawn = self.__dict__.get("_pjrt_drawn", (float("-inf"), {}))
    is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    if is_last or time.monotonic() - drawn_s >= PERIOD_S:
        drawn = original(self, trainer, model)
        self._pjrt_drawn = (time.monotonic(), drawn)
    return dict(drawn)


_CHANGES: dict[str, Callable[[Any], None]] = {
    "logger_connector.result": _numbers_later,
    "trainer.trainer": lambda trainer: wrap_property(
        trainer.Trainer, "progress_bar_metrics", _numbers_of
    ),
    "progress.progress_bar": lambda bar: wrap(bar.ProgressBar, "get_metrics", _get_metrics),
}
