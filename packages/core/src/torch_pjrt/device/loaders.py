"""Loaders of PyTorch: each batch is where a step begins, and their workers are forked without a warning.

Workers are forked from a process in which JAX runs threads: harmless, since they use no JAX.
"""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

from torch.utils.data import dataloader

from torch_pjrt.device.imports import after_import
from torch_pjrt.run.batches import begin_step, run_between_steps


def install() -> None:
    """Change PyTorch's iterators of a `DataLoader`, and of torchdata's `StatefulDataLoader` once imported.

    They say when a batch is fetched (`run/batches.py`). JAX's warning about `os.fork` is silent while workers
    start, and only then.
    """
    _tell_of_batches(dataloader._BaseDataLoaderIter)
    _silence(dataloader._MultiProcessingDataLoaderIter)
    after_import("torchdata.stateful_dataloader.stateful_dataloader", _change_stateful)


def _change_stateful(module: Any) -> None:
    _tell_of_batches(getattr(module, "_StatefulBaseDataLoaderIter", None))
    _silence(getattr(module, "_StatefulMultiProcessingDataLoaderIter", None))


def _tell_of_batches(loader: Any) -> None:
    if loader is None or getattr(loader.__next__, "knows_pjrt", False):
        return
    original = loader.__next__

    @wraps(original)
    def __next__(self: Any) -> Any:
        run_between_steps()
        batch = original(self)
        begin_step()
        return batch

    __next__.knows_pjrt = True  # type: ignore[attr-defined]
    loader.__next__ = __next__


def _silence(loader: Any) -> None:
    if loader is None or getattr(loader.__init__, "knows_pjrt", False):
        return
    original = loader.__init__

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            original(self, *args, **kwargs)

    __init__.knows_pjrt = True  # type: ignore[attr-defined]
    loader.__init__ = __init__
