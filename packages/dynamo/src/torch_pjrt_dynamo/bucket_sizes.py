"""Up to which sizes a size that varies is padded: the buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_pjrt.errors import SettingError


@dataclass(frozen=True, slots=True)
class Buckets:
    """Powers of two, or the sizes that are given: in rising order, all of at least 1."""

    sizes: tuple[int, ...] | None = None

    def capacity_for(self, n: int) -> int | None:
        """The size to which `n` is padded; None where there is none: then the program is for that size."""
        if not isinstance(n, int) or n < 1:  # the size of a jagged dim is no number
            return None
        if self.sizes is None:
            return 1 << (n - 1).bit_length()
        position = bisect_left(self.sizes, n)
        return self.sizes[position] if position < len(self.sizes) else None


def buckets_of(option: Any) -> Buckets | None:
    """What the option `buckets` says: True, a list of sizes, or False for none."""
    if option is True:
        return Buckets()
    if option is False or option is None:
        return None
    if isinstance(option, Sequence) and option and all(map(_is_size, option)):
        return Buckets(tuple(sorted(set(option))))
    raise SettingError(
        "`buckets` cannot be that.",
        saw=repr(option),
        expected="True (powers of two), False (one program for each size), or a list of sizes",
    )


def _is_size(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0
