"""DataLoader workers are forked from a process in which JAX runs threads: harmless, since they use no JAX."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

from torch.utils.data import dataloader


def install() -> None:
    """Silence JAX's warning about `os.fork` while a DataLoader starts its workers, and only then."""
    loader: Any = dataloader._MultiProcessingDataLoaderIter
    original = loader.__init__
    if getattr(original, "knows_pjrt", False):
        return

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            original(self, *args, **kwargs)

    __init__.knows_pjrt = True  # type: ignore[attr-defined]
    loader.__init__ = __init__
