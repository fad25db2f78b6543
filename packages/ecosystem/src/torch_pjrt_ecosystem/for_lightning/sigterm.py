"""Whether rank 0 was asked to end: Lightning's `Trainer` tells all processes before each batch, and reads it.

That ends each step's program before the step. Here a process looks, before a batch, at what it was told
with the last one, which is there already. All look at the same, and so they end before the same batch. They
are told behind the fetch of a batch, and so in the program of its step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from torch_pjrt_ecosystem.for_lightning.trees import root_of
from torch_pjrt_ecosystem.replacing import wrap

_TOLD = "_pjrt_told_of_sigterm"
_TELLS = "_pjrt_tells_of_sigterm"


def install(module: ModuleType) -> None:
    """`module` has the loop over the batches of an epoch."""
    exceptions = f"{root_of(module)}.utilities.exceptions"

    def look_later(original: Callable[[Any], None], self: Any) -> None:
        if self.trainer.strategy.root_device.type != "pjrt":
            original(self)
            return
        before = self.__dict__.pop(_TOLD, None)
        if before is not None and before.item() == 1:
            with contextlib.suppress(Exception):
                dist.barrier()
            raise import_module(exceptions).SIGTERMException()
        if self.__dict__.get(_TELLS):  # no fetch has come meanwhile
            tell(self)
        self.__dict__[_TELLS] = True

    def tell(self: Any) -> None:
        self.__dict__.pop(_TELLS)
        self.__dict__[_TOLD] = _tell(self.trainer)

    def fetched(original: Callable[[Any], None], self: Any) -> None:
        original(self)
        if self.__dict__.get(_TELLS):
            tell(self)

    wrap(module._TrainingEpochLoop, "_broadcast_sigterm_tensor", look_later)
    wrap(module._TrainingEpochLoop, "_on_after_fetch", fetched)


def _tell(trainer: Any) -> torch.Tensor:
    is_asked = bool(getattr(trainer, "received_sigterm", False))
    told = torch.tensor([int(is_asked)], device=trainer.strategy.root_device)
    dist.broadcast(told, src=0)
    return told
