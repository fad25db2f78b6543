"""Room for programs: which are given back when they take more memory than they may, or than there is.

What is given back is compiled again, or loaded from disk, when it is needed. A captured step holds those that
it launches itself.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from torch_pjrt.client.client import client
from torch_pjrt.observe.counters import counters
from torch_pjrt.observe.log import log
from torch_pjrt.observe.tables import readable
from torch_pjrt.settings import settings

if TYPE_CHECKING:
    from torch_pjrt.compile.programs import Entry, Program

# What a compiled program takes of the process's memory, measured on the CPU for 4 to 400 operators: XLA's
# executable with its code, what JAX keeps of it, and our graph.
_BYTES_OF_A_PROGRAM = 100 << 10
_BYTES_OF_AN_OPERATOR = 25 << 10
# How far below its bound giving back goes, so that not every program gives one back.
_ROOM = 0.9
# Asking the device may mean looking at the whole process, so it is done seldom.
_MADE_BETWEEN_QUESTIONS = 64


def bytes_of(program: Program) -> int:
    """Bytes that the program takes of the process's memory, about."""
    return _BYTES_OF_A_PROGRAM + _BYTES_OF_AN_OPERATOR * len(program.recorded.nodes)


class Eviction:
    """Keeps the programs of `entries` within their bounds.

    given_back   the keys of those that were too much for `settings.max_program_bytes`, and are not back.
    """

    def __init__(self, entries: dict[Any, Entry]) -> None:
        self.given_back: set[Any] = set()
        self._entries = entries
        self._at_most = 0  # never less bytes than they take
        self._made = itertools.count(1)

    def make(self) -> None:
        """Called before a program is made: give back half of them where the device can hold no more."""
        if next(self._made) % _MADE_BETWEEN_QUESTIONS or client().device.has_room_for_programs():
            return
        older = self._by_use()[: len(self._entries) // 2]
        for key in older:
            del self._entries[key]
        self._log(len(older), "the process can hold no more")

    def take(self, key: Any, program: Program) -> None:
        """Called when a program was made: give back what ran longest ago if that is too much."""
        self.given_back.discard(key)
        self._at_most += bytes_of(program)
        bound = settings.max_program_bytes
        if self._at_most <= bound:
            return
        sizes = {k: sum(map(bytes_of, e.variants.values())) for k, e in self._entries.items()}
        total = sum(sizes.values())
        n_given_back = 0
        for old in self._by_use() if total > bound else ():
            if total <= bound * _ROOM:
                break
            if old != key:
                total -= sizes[old]
                del self._entries[old]
                self.given_back.add(old)
                n_given_back += 1
        self._at_most = total
        if n_given_back:
            self._log(n_given_back, f"programs take more than {readable(bound)}")

    def count_again(self) -> None:
        """Called when `entries` has become another."""
        self._at_most = sum(
            bytes_of(p) for e in self._entries.values() for p in e.variants.values()
        )

    def _by_use(self) -> list[Any]:
        """The keys of all entries, those first that ran longest ago."""
        return sorted(self._entries, key=lambda key: self._entries[key].used)

    def _log(self, n: int, why: str) -> None:
        counters.programs_given_back += n
        log("recompile", f"{n} programs were given back: {why}")
