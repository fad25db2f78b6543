"""`torch_xla.distributed.xla_multiprocessing` (`xmp`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from torch_xla.absent import absent
from torch_xla.distributed.launching import spawn

__all__ = ["MpModelWrapper", "MpSerialExecutor", "spawn"]

__getattr__ = absent(
    __name__,
    {
        "create_optimized_replica_groups": "`groups=` of a collective takes lists of ranks; XLA routes"
    },
)


class MpModelWrapper:
    """A model that a forked process moves to the device. Processes are not forked here: each has its own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def to(self, device: Any) -> nn.Module:
        """The model on `device`."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs a function in one thread at a time, `run(fn)`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def run(self, fn: Callable[[], Any]) -> Any:
        """What `fn()` returns."""
        with self._lock:
            return fn()
