"""`logging_nan_inf_filter` without a read.

After each step `Trainer` asks whether the loss is finite. If it is not, it logs the average of the losses
since it logged last. Here the device chooses between the two. So that `Trainer` does not ask, its setting is
False while batches are trained on; logging, evaluation, checkpoints and callbacks there see it as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import wrap

_ON = "_pjrt_filters_losses"


def install(trainer: Any) -> None:
    """`trainer` is `transformers.trainer`."""
    wrap(trainer.Trainer, "_run_epoch", _run_epoch)
    wrap(trainer.Trainer, "_maybe_log_save_evaluate", _maybe_log_save_evaluate)


def _run_epoch(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if not self.args.logging_nan_inf_filter or self.args.device.type != "pjrt":
        return original(self, *args, **kwargs)
    step = self.training_step
    is_own = "training_step" in vars(self)

    @functools.wraps(step)
    def filtered_step(*args: Any, **kwargs: Any) -> Any:
        loss = step(*args, **kwargs)
        return _filtered(self, loss) if isinstance(loss, torch.Tensor) else loss

    self.training_step = filtered_step
    setattr(self, _ON, True)
    try:
        with _setting(self, False):
            return original(self, *args, **kwargs)
    finally:
        delattr(self, _ON)
        if is_own:
            self.training_step = step
        else:
            del self.training_step


def _maybe_log_save_evaluate(
    original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    if not hasattr(self, _ON):
        return original(self, *args, **kwargs)
    with _setting(self, True):
        return original(self, *args, **kwargs)


def _filtered(self: Any, loss: torch.Tensor) -> torch.Tensor:
    """The count is a tensor: a number would become an input of the program in the second step."""
    total, n = self._tr_loss, 1 + self.state.global_step - self._globalstep_last_logged
    average = total / torch.tensor(n, dtype=total.dtype, device="cpu").to(total.device)
    return torch.where(torch.isfinite(loss), loss, average)


@contextmanager
def _setting(self: Any, now: bool) -> Iterator[None]:
    before = self.args.logging_nan_inf_filter
    self.args.logging_nan_inf_filter = now
    try:
        yield
    finally:
        self.args.logging_nan_inf_filter = before
