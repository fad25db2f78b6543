"""What goes wrong with data."""

from __future__ import annotations

from torch_pjrt.errors import TorchPjrtError


class DataError(TorchPjrtError, RuntimeError):
    """Data cannot be had as asked for: a state of other data, a sample over the budget, a short lane."""


class WorkerDied(DataError):
    """A worker process of a `DataLoader` has ended; the loader's state is that before the missing batch."""
