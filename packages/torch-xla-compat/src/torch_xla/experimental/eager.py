"""Whether each operator runs at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch_pjrt


def eager_mode(enable: bool) -> None:
    """From now on run each operator at once, or not."""
    torch_pjrt.sync()
    torch_pjrt.config.eager = enable


def is_eager_mode() -> bool:
    """Whether each operator runs at once."""
    return torch_pjrt.config.eager


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """A block of code in which each operator runs at once, or does not."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
