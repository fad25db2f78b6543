"""Tests that are `slow` take turns, and so do the rows of long tables.

With `--part today/24`, a 24th of them runs, another one each day. What the command line names by its
file runs whole.

    slow            this test; of a parametrized one, each row has a turn of its own
    slow("file")    all of the file that are marked so have one turn, together
    slow("rows")    of a parametrized test the first row runs each day, and the others take turns

Of a parametrized test that is not `slow` and has more than 8 rows, the first two run each day, and the others
take turns of 24 days.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The rows of a long table; how many of them run each day; and in how many days all others have.
LONG, ALWAYS, DAYS = 8, 2, 24


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--part",
        metavar="K/N",
        help="of the tests that are marked `slow`, run one in N; `today/N` is another part each day",
    )


def pytest_configure(config: Any) -> None:
    """The day is that of the start: workers that start later run the same part."""
    if config.option.part is not None:
        from torch_pjrt.testing.parts import part

        config.option.part = "{0.number}/{0.of}".format(part(config.option.part))


def pytest_collection_modifyitems(config: Any, items: list[pytest.Item]) -> None:
    """Leave out the tests whose turn it is not."""
    if config.option.part is None:
        return
    number, of = map(int, config.option.part.split("/"))
    files = [path for arg in config.args if (path := Path(arg.partition("::")[0])).suffix == ".py"]
    named = {(config.invocation_params.dir / file).resolve() for file in files}
    free = [item for item in items if item.path not in named]
    resting = {*out_of_turn(turns_of(free), number, of), *rows_out_of_turn(free, number)}
    config.hook.pytest_deselected(items=list(resting))
    items[:] = [item for item in items if item not in resting]


def turns_of(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, str | None]]:
    """Each item, and what takes turns: itself, or its file as a whole; None runs always."""
    begun: set[str] = set()
    for item in items:
        mark = item.get_closest_marker("slow")
        table = item.nodeid.partition("[")[0]
        if mark is None or (mark.args == ("rows",) and table not in begun):
            yield item, None
        else:
            yield item, str(item.path) if mark.args == ("file",) else item.nodeid
        begun.add(table)


def rows_out_of_turn(items: Iterable[pytest.Item], number: int) -> Iterator[pytest.Item]:
    """Of long tables the rows that do not run in the part of this number."""
    tables: dict[str, list[pytest.Item]] = {}
    for item in items:
        if "[" in item.nodeid and item.get_closest_marker("slow") is None:
            tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for rows in tables.values():
        if len(rows) > LONG:
            yield from (row for i, row in enumerate(rows) if i >= ALWAYS and (i - number) % DAYS)


def out_of_turn(items: Iterable[tuple[Any, str | None]], number: int, of: int) -> Iterable[Any]:
    """The items that are in other parts than the one of this number. Items of one turn stay together."""
    turns: dict[str, int] = {}
    for item, turn in items:
        if turn is not None and turns.setdefault(turn, len(turns)) % of != number:
            yield item
