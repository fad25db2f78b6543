"""What a call with checks to come keeps: a tensor that they hold is computed, and kept, for them alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

import torch

from torch_pjrt.run.deferred_checks import pending
from torch_pjrt.tensor.storage.buffer import buffer_of


class Maker:
    """Makes tensors whose values the host does not know, and remembers what is behind them."""

    def __init__(self) -> None:
        self.made: list[ref[Any]] = []

    def __call__(self, values: Any, **options: Any) -> torch.Tensor:
        given = torch.tensor(values, device="pjrt", **options)
        made = torch.where(given == given, given, given)
        self.made.append(ref(buffer_of(made)))
        return made


def kept_by_checks(call: Callable[[Maker], object]) -> tuple[int, bool]:
    """How many of the tensors that a call has had made outlive it, and whether it has checks to come."""
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    make, before = Maker(), len(pending())
    call(make)
    has_checks = len(pending()) > before
    left = sum(buffer() is not None for buffer in make.made)
    with suppress(IndexError, RuntimeError):  # what is out of range is not the point
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
    return left, has_checks
