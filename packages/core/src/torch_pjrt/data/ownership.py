"""Whether a batch is ours alone: then its memory can go to the device as it is, without a copy.

A tensor that somebody else may write to must be copied before it is uploaded: on the CPU the device's array
would share its memory, and elsewhere the transfer goes on behind the host's back. Nobody else can where
the containers that hold it, the tensor and its storage are referred to from here alone, and PyTorch made
the storage (and not NumPy, nor another process).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from torch_pjrt.references import OF_A_LOCAL, getrefcount

_uses_of_storage: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def visit(items: Iterable[Any], alone: bool, see: Callable[[Any, bool], Any]) -> list[Any]:
    """`see(item, whether it is ours alone)` of each; `alone` says whether what holds the items is."""
    held = list(items)
    results = []
    while held:
        item = held.pop(0)
        mine = alone and getrefcount(item) <= OF_A_LOCAL
        results.append(see(item, mine))
    return results


def is_free(tensor: torch.Tensor) -> bool:
    """Whether nothing in C++ shares the tensor's memory, and PyTorch itself allocated it."""
    if _uses_of_storage is None or tensor.requires_grad or type(tensor) is not torch.Tensor:
        return False
    storage = tensor.untyped_storage()
    return (
        tensor._use_count() == 1  # type: ignore[attr-defined]
        and _uses_of_storage(storage._cdata) <= 2  # the tensor and `storage`
        and storage.resizable()
        and not storage.is_shared()
    )
