"""Tests of one group run on one worker, with `--dist loadgroup`; the longest tests begin first.

A group are those of one `xdist_group`, and those of a file that share what a module's fixture makes: on
two workers it would be made twice. Where a test of minutes is the last, the other workers wait for it. The
longest are those that run files on eight chips, known by the name of their file.

pytest-xdist finds a group at the end of a test's name, where it puts it itself: until 3.8 into an attribute
that pytest 9.2 no longer has.
"""

from __future__ import annotations

from typing import Any

import pytest

LONGEST = "test_on_eight_chips.py"


def pytest_collection_modifyitems(config: Any, items: list[pytest.Item]) -> None:
    """Put it there, and the longest to the front."""
    if not getattr(config.option, "loadgroup", False):
        return
    items.sort(key=lambda item: item.path.name != LONGEST)
    for item in items:
        group = _group(item)
        named: Any = getattr(item, "_id", None)
        if group and named is not None and not item.nodeid.endswith(f"@{group}"):
            item._id = type(named).parse(f"{item.nodeid}@{group}")  # type: ignore[attr-defined]


def _group(item: pytest.Item) -> str | None:
    if mark := item.get_closest_marker("xdist_group"):
        return mark.args[0]
    file = item.nodeid.partition("::")[0]
    known: dict[str, Any] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    shares = any(d.scope == "module" and d.baseid == file for of in known.values() for d in of)
    return file.replace("/", ".") if shares else None
