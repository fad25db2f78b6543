"""What is called when the device has computed a tensor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

import torch_pjrt

__all__ = ["on_ready_callback", "on_ready_event"]


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
    """Call `callback(tensor)` on a thread of its own when the device has computed `tensor`.

    What is pending is run. `callback` may read the tensor.
    """
    _when_ready(tensor, lambda: callback(tensor))


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set when the device has computed `tensor`."""
    event = threading.Event()
    _when_ready(tensor, event.set)
    return event


def _when_ready(tensor: torch.Tensor, call: Callable[[], Any]) -> None:
    array = torch_pjrt.to_jax(tensor.detach())

    def wait() -> None:
        array.block_until_ready()
        call()

    threading.Thread(target=wait, name="torch_xla-on-ready", daemon=True).start()
