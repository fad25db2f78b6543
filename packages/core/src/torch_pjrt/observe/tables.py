"""Tables for people: columns as wide as their contents, long texts folded to the width of the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_WIDTH_OF_FILES = 140  # where there is no terminal: a file, a notebook


@dataclass(frozen=True, slots=True)
class Table:
    """A title, and rows below headings. Numbers are aligned to the right.

    >>> Table("Flops", ("program", "flops"), [(1, 2048)]).headings
    ('program', 'flops')
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def first(self, most: int) -> Table:
        """Its first `most` rows, and one that says how many more there are.

        >>> Table("Primes", ("prime",), [(2,), (3,), (5,)]).first(1).rows
        [(2,), ('2 more',)]
        """
        left_out = len(self.rows) - most
        if left_out <= 0:
            return self
        last = (f"{left_out} more", *[None] * (len(self.headings) - 1))
        return replace(self, rows=[*self.rows[:most], last])


class Shown:
    """What is printed as tables, in a notebook as HTML."""

    __slots__ = ()

    def _tables(self) -> list[Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        return text(self._tables())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html(self._tables())


def text(tables: Sequence[Table]) -> str:
    """The tables as plain text, those without rows left out."""
    from rich.console import Console

    file = io.StringIO()
    terminal = Console()
    width = terminal.width if terminal.is_terminal else _WIDTH_OF_FILES
    console = Console(file=file, width=width, no_color=True, force_terminal=False)
    for table in _filled(tables):
        console.print(_rich(table))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def html(tables: Sequence[Table]) -> str:
    """The tables for a notebook."""
    from html import escape

    parts = []
    for table in _filled(tables):
        rows = [_cells("th", table.headings)] if any(table.headings) else []
        rows += [_cells("td", [shown(cell) for cell in row]) for row in table.rows]
        parts.append(f"<table><caption>{escape(table.title)}</caption>{''.join(rows)}</table>")
    return "".join(parts)


def shown(cell: object) -> str:
    """A cell as text: large integers in groups of three digits, None as nothing."""
    if cell is None:
        return ""
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def readable(nbytes: int) -> str:
    """`nbytes` in the unit that a person would use."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _filled(tables: Sequence[Table]) -> list[Table]:
    return [table for table in tables if table.rows]


def _cells(tag: str, cells: Sequence[str]) -> str:
    from html import escape

    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _rich(table: Table) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(
        title=table.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if any(table.headings) else box.SIMPLE,
        show_header=any(table.headings),
        pad_edge=False,
    )
    for position, heading in enumerate(table.headings):
        numeric = all(isinstance(row[position], (int, float)) for row in table.rows)
        made.add_column(
            heading, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    for row in table.rows:
        made.add_row(*[Text(shown(cell)) for cell in row])
    return made
