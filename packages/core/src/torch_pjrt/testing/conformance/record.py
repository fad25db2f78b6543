"""A page with a row for each operator that was run as a whole, so that hours of runs add up.

The page itself is read to go on, and can be kept with the source. An operator that has a row is not run
again: delete the row to have it run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch_pjrt.testing.conformance import gaps
from torch_pjrt.testing.conformance.cases import cases_of, operators
from torch_pjrt.testing.conformance.check import Result


class Row(NamedTuple):
    """What came of all cases of an operator.

    day       when the last of them was run: `2026-11-28`.
    listed    cases that differ, as `gaps.py` says; failed, those of which it does not say so.
    runs      samples of all cases.
    loaded    programs that came from disk; compiled, those that had to be compiled anew.
    """

    operator: str
    day: str
    cases: int
    passed: int
    listed: int
    failed: int
    runs: int
    loaded: int
    compiled: int


class Record:
    """The rows of a page, and the results of operators that have none yet."""

    def __init__(self, path: Path, day: str) -> None:
        self.path = path
        self.day = day
        self.rows = {row.operator: row for row in _rows_of(path)}
        self._results: dict[str, list[Result]] = defaultdict(list)
        self._gaps = gaps.gap_of()

    def add(self, result: Result) -> None:
        """One more result. With the last of an operator's, the page is written."""
        results = self._results[result.operator]
        results.append(result)
        if {r.case for r in results} < {*cases_of(result.operator)}:
            return
        self.rows[result.operator] = self._row(result.operator, results)
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text("\n".join(_page(self.rows)) + "\n")
        os.replace(new, self.path)

    def _row(self, operator: str, results: Sequence[Result]) -> Row:
        differ = [r.case for r in results if not r.passed]
        listed = sum(case in self._gaps for case in differ)
        return Row(
            operator,
            self.day,
            cases=len(results),
            passed=len(results) - len(differ),
            listed=listed,
            failed=len(differ) - listed,
            runs=sum(r.samples for r in results),
            loaded=sum(r.loaded for r in results),
            compiled=sum(r.compiled for r in results),
        )


def _rows_of(path: Path) -> list[Row]:
    """The rows of a page; none without one."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(Row._fields) and cells[0].startswith("`"):
            name, day, *numbers = cells
            rows.append(Row(name.strip("`"), day, *map(int, numbers)))
    return rows


def _page(rows: dict[str, Row]) -> list[str]:
    known = [rows[name] for name in sorted(rows)]
    n_operators = sum(any(cases_of(name)) for name in operators())
    totals = [sum(column) for column in zip(*(row[2:] for row in known), strict=True)]
    cases, passed, listed, failed, runs, loaded, compiled = totals
    return [
        "# Operators whose programs come from disk",
        "",
        "Written by `hatch run conformance --from-disk --record benchmarks/results/from-disk.md`, which goes",
        f"on with operators that have no row: {len(known)} of {n_operators} are run so far. A case is",
        "checked in a process that compiles its programs, and in one that loads them.",
        "",
        f"{cases:,} cases of {runs:,} runs: {passed:,} passed, {listed:,} differ as",
        f"[listed](../../docs/operators.md), {failed:,} failed. {loaded:,} programs came from disk,",
        f"{compiled:,} had to be compiled anew.",
        "",
        "| " + " | ".join(["operator", "run on", *Row._fields[2:-1], "compiled anew"]) + " |",
        "|---|---" + "|--:" * len(totals) + "|",
        *("| " + " | ".join([f"`{row.operator}`", *map(str, row[1:])]) + " |" for row in known),
    ]
