"""Tables of edges, each kept once, and what is worked out from them, once per table.

A problem has tens of thousands of edges but some thousand distinct tables. A table is known by its number;
its entries are int64, and one that is `FORBIDDEN` stays exactly that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN, added


@dataclass(frozen=True, eq=False)
class Kind:
    """What a table says. Where a field is None, it does not hold."""

    rows: np.ndarray  # bool: the row has an entry that is allowed
    columns: np.ndarray
    column_of_row: np.ndarray | None  # each row allows one column: which
    row_of_column: np.ndarray | None  # each column allows one row: which
    sum: (
        tuple[np.ndarray, np.ndarray] | None
    )  # all is allowed, and an entry is a number of its row + of its column


class Tables:
    def __init__(self) -> None:
        self.all: list[np.ndarray] = []
        self._numbers: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._kinds: dict[int, Kind] = {}
        self._transposed: dict[int, int] = {}
        self._picked: dict[tuple[int, int, bytes], int] = {}
        self._sums: dict[tuple[int, int], int] = {}

    def number(self, table: np.ndarray) -> int:
        table = np.ascontiguousarray(table)
        key = (table.shape, table.tobytes())
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.all)
            self.all.append(table)
        return found

    def transposed(self, number: int) -> int:
        found = self._transposed.get(number)
        if found is None:
            found = self._transposed[number] = self.number(self.all[number].T)
            self._transposed[found] = number
        return found

    def picked(self, number: int, axis: int, positions: np.ndarray) -> int:
        """The table of these rows (axis 0) or columns, in this order; one may come more than once."""
        key = (number, axis, positions.tobytes())
        found = self._picked.get(key)
        if found is None:
            found = self._picked[key] = self.number(np.take(self.all[number], positions, axis))
        return found

    def sum(self, one: int, other: int) -> int:
        key = (one, other) if one < other else (other, one)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = self.number(added(self.all[one], self.all[other]))
        return found

    def kind(self, number: int) -> Kind:
        found = self._kinds.get(number)
        if found is None:
            found = self._kinds[number] = _kind(self.all[number])
        return found


def _kind(table: np.ndarray) -> Kind:
    allowed = table < FORBIDDEN
    in_row, in_column = allowed.sum(1), allowed.sum(0)
    parts = None
    if allowed.all():
        of_column = table[0]
        of_row = table[:, 0] - table[0, 0]
        if np.array_equal(of_row[:, None] + of_column, table):
            parts = (of_row, of_column)
    return Kind(
        rows=in_row > 0,
        columns=in_column > 0,
        column_of_row=allowed.argmax(1) if (in_row == 1).all() else None,
        row_of_column=allowed.argmax(0) if (in_column == 1).all() else None,
        sum=parts,
    )
