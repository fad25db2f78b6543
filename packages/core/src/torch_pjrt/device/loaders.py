"""DataLoader workers are forked from a process in which JAX runs threads: harmless, since they use no JAX."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

from torch.utils.data import dataloader

from torch_pjrt.device.imports import after_import


def install() -> None:
    """Silence JAX's warning about `os.fork` while a DataLoader starts its workers, and only then.

    PyTorch's own, and torchdata's `StatefulDataLoader` where that is imported.
    """
    _watch(dataloader._MultiProcessingDataLoaderIter)
    after_import(
        "torchdata.stateful_dataloader.stateful_dataloader",
        lambda module: _watch(getattr(module, "_StatefulMultiProcessingDataLoaderIter", None)),
    )


def _watch(loader: Any) -> None:
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
