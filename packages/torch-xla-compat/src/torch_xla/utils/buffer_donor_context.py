"""Which inputs a program may take the memory of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["alias_with_buffer_donor_config"]


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[bool]:
    """A block in which nothing is different: what is written in place is donated by itself."""
    yield False
