"""A call of a captured step that is neither observed nor replayed, recorded as those are that will be.

So its program is theirs, and is compiled once: optimizers count on the device, and arguments may be any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from torch_pjrt.device.counting_optimizers import begin_counting, end_counting
from torch_pjrt.device.optimizer_state import add_optimizer_hook
from torch_pjrt.replays.observation import let_arguments_be_any
from torch_pjrt.run.sync import sync

R = TypeVar("R")


def as_it_is(call: Callable[[], R], tensors: Sequence[torch.Tensor]) -> tuple[R, bool]:
    """What the call returns, and whether an optimizer counted on the device that did not without this.

    tensors   its arguments.
    """
    sync("a captured step begins")
    let_arguments_be_any(tensors)
    with _counting_from_their_steps() as groups:
        returned = call()
    sync("a captured step ends")
    return returned, bool(groups)


@contextmanager
def _counting_from_their_steps() -> Iterator[list[dict[str, Any]]]:
    """Optimizers that take a step in this thread count on the device; the groups that do."""
    groups: list[dict[str, Any]] = []
    thread = threading.get_ident()

    def before_step(optimizer: Optimizer) -> None:
        if threading.get_ident() == thread:
            begin_counting(optimizer, groups)

    handle = add_optimizer_hook(before_step)
    try:
        yield groups
    finally:
        end_counting(groups)
        handle.remove()
