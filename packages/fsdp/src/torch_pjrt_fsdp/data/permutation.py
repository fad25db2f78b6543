"""A random order of many things, each place of it computed when it is asked for.

A Feistel network whose halves are numbers below `rows` and `columns`, with `rows * columns` not much more
than the size, and cycle walking: what comes out too large goes in again (Black and Rogaway, "Ciphers with
arbitrary finite domains", CT-RSA 2002, sections 3 and 5). The round function is the mix of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; Stafford's variant 13).
It is for shuffling: nothing here is secret. The order of a seed never changes with versions of NumPy.

Few rounds give few of the orders of a few things (of 6, 8 rounds are seen not to be uniform), and a table of
them takes no room: up to `TABLE_UP_TO` the order is that of random keys, sorted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

N_ROUNDS = 8
TABLE_UP_TO = 2**16
LARGEST = 2**62  # an index is an int64, and `rows * columns` is below 2**63

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(x: int) -> int:
    """64 bits of which each depends on each bit of the 64-bit number x; a bijection."""
    x = (x + _STEP) & _MASK
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def key_of(*numbers: int) -> int:
    """64 bits that stand for some whole numbers of any size and sign, in this order."""
    key = len(numbers)
    for number in numbers:
        key = mixed(key ^ (number < 0))
        rest = abs(number)
        while True:
            key = mixed(key ^ (rest & _MASK))
            rest >>= 64
            if not rest:
                break
    return key


def _mixed(x: Numbers, key: int) -> Numbers:
    """`mixed(key ^ x)` of each; sums and products wrap around."""
    x = (x ^ np.uint64(key)) + np.uint64(_STEP)
    x ^= x >> np.uint64(30)
    x *= np.uint64(_FIRST)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_SECOND)
    x ^= x >> np.uint64(31)
    return x


class Permutation(Sequence[int]):
    """The numbers from 0 to `size - 1`, in the order that `seed` and `epoch` name.

    It takes a few hundred bytes for any size; up to 65,536, eight bytes for each number.

        order = Permutation(10**9, seed=0, epoch=3)
        order[5]              # which is the sixth
        order.take(0, 4096)   # the first 4096, as an int64 array, about 0.2 us each
        order.position_of(7)  # where 7 stands

    size         0 to 2**62.
    seed, epoch  whole numbers of any size.
    """

    def __init__(self, size: int, seed: int = 0, epoch: int = 0) -> None:
        if not 0 <= size <= LARGEST:
            raise ValueError(f"size must be between 0 and 2**62, saw {size}")
        self.size, self.seed, self.epoch = size, seed, epoch
        self._columns = max(math.isqrt(max(size - 1, 0)) + 1, 2)
        self._rows = max(-(-size // self._columns), 2)
        self._keys = [key_of(seed, epoch, i) for i in range(N_ROUNDS)]
        self._table: Numbers | None = None
        if size <= TABLE_UP_TO:
            ranks = _mixed(np.arange(size, dtype=np.uint64), self._keys[0])
            self._table = np.argsort(ranks, kind="stable").astype(np.uint64)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Permutation({self.size}, seed={self.seed}, epoch={self.epoch})"

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return self._walk(np.arange(self.size, dtype=np.uint64)[index]).tolist()
        position = range(self.size)[index]
        return int(self.take(position, position + 1)[0])

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """What stands at the places from `start` to `stop - 1`; `IndexError` where there are no such."""
        if not 0 <= start <= stop <= self.size:
            raise IndexError(f"places {start} to {stop} of an order of {self.size}")
        return self.at(np.arange(start, stop))

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """What stands at each of these places, which are at least 0 and below the size."""
        return self._walk(positions.astype(np.uint64)).view(np.int64)

    def position_of(self, number: int) -> int:
        """The place at which a number stands; `ValueError` where it is none of these."""
        if not 0 <= number < self.size:
            raise ValueError(f"{number} is not below {self.size}")
        if self._table is not None:
            return int(np.flatnonzero(self._table == np.uint64(number))[0])
        while True:
            number = self._undone(number)
            if number < self.size:
                return number

    def _walk(self, x: Numbers) -> Numbers:
        if self._table is not None:
            return self._table[x]
        x = self._once(x)
        while len(outside := np.flatnonzero(x >= np.uint64(self.size))):
            x[outside] = self._once(x[outside])
        return x

    def _once(self, x: Numbers) -> Numbers:
        """A permutation of the numbers below `rows * columns`."""
        columns, rows = np.uint64(self._columns), np.uint64(self._rows)
        left, right = np.divmod(x, columns)
        for number, key in enumerate(self._keys):
            if number % 2:
                right = (right + _mixed(left, key) % columns) % columns
            else:
                left = (left + _mixed(right, key) % rows) % rows
        return left * columns + right

    def _undone(self, x: int) -> int:
        left, right = divmod(x, self._columns)
        for number, key in reversed(list(enumerate(self._keys))):
            if number % 2:
                right = (right - mixed(key ^ left)) % self._columns
            else:
                left = (left - mixed(key ^ right)) % self._rows
        return left * self._columns + right
