"""Parts of a long run: `3/8` is the fourth of eight; `today/8` is another one each day."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple


class Part(NamedTuple):
    """One part, counted from 0, `of` so many."""

    number: int
    of: int


def part(text: str) -> Part:
    """Read `K/N`. Raises `ValueError` for anything else."""
    k, _, n = text.partition("/")
    return Part((date.today().toordinal() if k == "today" else int(k)) % int(n), int(n))
