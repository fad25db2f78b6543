"""Whether each operator runs at once, on this thread: `torch_pjrt.eager()` without a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch_pjrt


class _Mode(threading.local):
    """The block of `torch_pjrt.eager()` that this thread has begun."""

    begun: AbstractContextManager[None] | None = None


_mode = _Mode()


def eager_mode(enable: bool) -> None:
    """From now on run each operator of this thread at once, or not."""
    if enable and not is_eager_mode():
        _mode.begun = torch_pjrt.eager()
        _mode.begun.__enter__()
    elif not enable and _mode.begun is not None:
        begun, _mode.begun = _mode.begun, None
        begun.__exit__(None, None, None)


def is_eager_mode() -> bool:
    """Whether each operator of this thread runs at once; the variable TORCH_PJRT_EAGER says it of all."""
    return _mode.begun is not None or torch_pjrt.config.eager


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """A block of code in which each operator runs at once, or does not."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
